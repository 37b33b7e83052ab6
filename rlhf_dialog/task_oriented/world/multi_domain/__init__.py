"""Several domains in one dialogue (MultiWOZ), at act level: the same chain of parts as for a single domain, without errors.

- **The data decide all sizes** (`domains.MultiDomain`): domains, slots, actions, observation. No code names a hotel.
- **Acts are those of a single domain**; a slot has its domain before it (`hotel-area`), and `book ` where it belongs to a
  booking (`hotel-book day`).
- **One summary action a turn**: a domain and an intent, so that a ratio of PPO has one factor.
- **State and verdict are functions of the acts, the bookings and the goal**; they never look into the user.
"""
