"""Which sample comes when: cohorts, the order of each lane, and how steps share it."""
