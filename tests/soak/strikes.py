"""What is killed and when: a plan by a seed, so that a run can be made again."""

from __future__ import annotations

import random
from dataclasses import dataclass

#: How often each kind of process is chosen, by store.
WEIGHTS = {
    "embedded": {"TaskManager": 1.0},
    "fluss": {"TaskManager": 0.5, "tablet server": 0.35, "coordinator": 0.15},
}
#: How often a strike does not wait until the job has recovered from the one before, and how soon it comes then, in seconds.
EARLY, EARLY_WITHIN = 0.2, 5.0
#: A strike on a job that has recovered comes within so many checkpoint intervals.
INTERVALS = 2.0


@dataclass(frozen=True)
class Strike:
    """Kill one process of a kind: which one, `choice` says (from 0 to below 1).

    It comes `delay` seconds after the one before (`early`), or after the job has recovered from that.
    """

    kind: str
    choice: float
    early: bool
    delay: float


def plan(seed: int, kills: int, store: str, interval: float) -> list[Strike]:
    """The strikes of a run."""
    numbers = random.Random(f"{seed} strikes")
    kinds, weights = zip(*WEIGHTS[store].items(), strict=True)
    strikes = []
    for number in range(kills):
        kind = numbers.choices(kinds, weights)[0]
        early = numbers.random() < EARLY and number > 0
        delay = numbers.uniform(0, EARLY_WITHIN if early else INTERVALS * interval)
        strikes.append(Strike(kind, numbers.random(), early, delay))
    return strikes
