"""What people type: one file a command; arguments, help, exit codes.

- **The scripts at the root are a few lines** that call a command's `main(argv) -> exit code`, so that an installed
  package can do everything that a checkout can.
- **One way to build a command** (`options`): a frozen class says flags, types, defaults and help; `run_command` parses,
  runs and returns the exit code. With a YAML (`YamlOptions`) each key of its schema is an option too.
- **A user's mistake is a message, not a traceback** (`command_line.exit_code`): exit code 2 for a UserError, 3 when a check of
  the run fails, 130 and 143 for SIGINT and SIGTERM, 141 when nobody reads the output any more. Any other exception is a
  bug: exit code 70, one line, and the traceback in error.log. `--debug` shows the traceback of either.
"""
