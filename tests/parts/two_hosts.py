"""Two hosts with names, addresses and a network between them: namespaces of this machine, which share its disk."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.parts.processes import HANGING

NAMES = ("alpha", "beta")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
INTERFACE = "veth0"  # of both hosts
SHELL = ("sh", "-c", "echo ready && exec cat")  # holds the namespaces of a host


class Host:
    """A machine of its own in host name, network interfaces and ports; `holder` is the process that keeps its namespaces."""

    def __init__(self, name: str, holder: "subprocess.Popen[str]", folder: Path):
        self.name = name
        self.holder = holder
        self.log = folder / f"{name}.log"

    def inside(self, *words: str | Path) -> list[str]:
        """The command line that runs `words` on this host, in the working directory."""
        enter = [
            "nsenter",
            "--target",
            str(self.holder.pid),
            "--user",
            "--preserve-credentials",
            "--net",
            "--uts",
            "--mount",
        ]
        return [*enter, f"--wdns={os.getcwd()}", "--", *map(str, words)]

    def start(self, *words: str | Path, env: dict[str, str]) -> "subprocess.Popen[str]":
        """A program on this host, whose output is `output()`."""
        with self.log.open("w") as file:
            return subprocess.Popen(self.inside(*words), stdout=file, stderr=subprocess.STDOUT, text=True, env=env)

    def output(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def kill(self) -> None:
        """Kill every process of this host but the one that holds it."""
        ours = Path(f"/proc/{self.holder.pid}/ns/net").readlink()
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (folder / "ns/net").readlink() == ours and int(folder.name) != self.holder.pid:
                    os.kill(int(folder.name), signal.SIGKILL)


def lacking() -> str:
    """Why this machine cannot have two hosts; empty where it can."""
    if missing := [name for name in ("unshare", "nsenter", "ip") if shutil.which(name) is None]:
        return f"two hosts need {' and '.join(missing)} (util-linux and iproute2)"
    tried = subprocess.run(["unshare", "-Urnm", "--uts", "true"], capture_output=True, text=True, check=False)
    return f"this machine allows no namespaces to its users: {tried.stderr.strip()}" if tried.returncode else ""


@contextmanager
def two_hosts(folder: Path) -> Iterator[tuple[Host, Host]]:
    """Two hosts that know each other's names; `folder` is for their files. Skips the test where a machine cannot."""
    if reason := lacking():
        pytest.skip(reason)
    lines = [f"{address} {name}" for name, address in zip(NAMES, ADDRESSES, strict=True)]
    (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
    (folder / "nsswitch.conf").write_text("hosts: files\n")  # no server is asked for a name, which would be waited for
    hosts: list[Host] = []
    try:
        first = Host(NAMES[0], _holder(["unshare", "-Urnm", "--uts", *SHELL]), folder)
        hosts.append(first)
        second = Host(NAMES[1], _holder(first.inside("unshare", "--net", "--uts", *SHELL)), folder)
        hosts.append(second)
        for name in ("hosts", "nsswitch.conf"):
            _run(first, "mount", "--bind", folder / name, f"/etc/{name}")
        link = f"ip link add {INTERFACE} type veth peer name {INTERFACE} netns {second.holder.pid}"
        _run(first, *link.split())
        for host, address in zip(hosts, ADDRESSES, strict=True):
            _run(host, "hostname", host.name)
            _run(host, "ip", "address", "add", f"{address}/24", "dev", INTERFACE)
            for interface in ("lo", INTERFACE):
                _run(host, "ip", "link", "set", interface, "up")
        yield first, second
    finally:
        for host in reversed(hosts):
            host.kill()
            host.holder.kill()
            host.holder.wait(HANGING)


@contextmanager
def lost_link(hosts: tuple[Host, Host]) -> Iterator[None]:
    """Inside the block the packets of both hosts go to a machine that is not there, and neither host is told."""
    for host, other in zip(hosts, reversed(ADDRESSES), strict=True):
        nobody = f"ip neighbour replace {other} lladdr 02:00:00:00:00:99 nud permanent dev {INTERFACE}"
        _run(host, *nobody.split())
    try:
        yield
    finally:
        for host, other in zip(hosts, reversed(ADDRESSES), strict=True):
            _run(host, *f"ip neighbour del {other} dev {INTERFACE}".split())


@contextmanager
def firewall(hosts: tuple[Host, Host], open_port: str = "") -> Iterator[None]:
    """Inside the block what the first host sends to the second is dropped, but for what comes from `open_port`."""
    rules = [f"to {ADDRESSES[1]} blackhole priority 101"]
    if open_port:
        rules.append(f"to {ADDRESSES[1]} ipproto tcp sport {open_port} lookup main priority 100")
    for rule in rules:
        _run(hosts[0], *f"ip rule add {rule}".split())
    try:
        yield
    finally:
        for rule in rules:
            _run(hosts[0], *f"ip rule del {rule}".split())


def _holder(words: list[str]) -> "subprocess.Popen[str]":
    held = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert held.stdout is not None
    assert held.stdout.readline() == "ready\n"
    return held


def _run(host: Host, *words: str | Path) -> None:
    done = subprocess.run(host.inside(*words), capture_output=True, text=True, check=False, timeout=HANGING)
    assert done.returncode == 0, (words, done.stderr)
