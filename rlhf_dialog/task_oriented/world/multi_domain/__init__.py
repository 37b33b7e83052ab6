"""Several domains in one dialogue (MultiWOZ), at act level: the same chain of parts as for a single domain, without errors.

- **The data decide all sizes** (`domains.MultiDomain`): domains, slots, actions, observation. No code names a hotel; what a
  taxi needs follows from a table that says what a thing is made of.
- **Acts are the acts of a single domain**; a slot has its domain before it (`hotel-area`), and `book ` where it belongs to a
  booking (`hotel-book day`).
- **One summary action a turn**: a domain and an intent. Each turn is what one side wants of one domain, so nothing is lost by
  it, and a ratio of PPO has one factor instead of one for every bit of a turn.
- **The state is a function of the acts** (`state`), so that a transcript shows it again; it never looks into the user.
- **Bookings are written down where they are made** (`state`), as a data base would do it; the verdict (`success`) reads them,
  the system's acts and the goal, never the user's notes.
"""
