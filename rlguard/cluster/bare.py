"""Pods that came into a guarded group while the injector was out of reach: created anew, to be guarded. Pure.

The API server lets a pod through when the injector does not answer (a cluster must not depend on it). In a group that
has been guarded before such a pod is worse than none: with no launcher and no lineage it begins at step 0, beside the
job's own checkpoints (A9). In a group that begins it makes a job that nobody guards, for days, out of one unlucky
second. So it is deleted and tried again, a few times; with an injector that never answers it is then left alone,
because rlguard's failure must not stop training. A pod of a group that was never guarded is left alone, too, unless
this controller saw it appear a moment ago: it may have trained for days, with nothing to resume from.
"""

from __future__ import annotations

from typing import Final

from rlguard.cluster.context import Context
from rlguard.cluster.status import GroupStatus
from rlguard.cluster.view import SeenPod
from rlguard.model import Phase

BARE_WAIT: Final = 3.0
"""A bare pod is left for so long, in seconds: the injector that just missed it may need a moment."""
BARE_TRIES: Final = 5
"""So many pods of one index in a row; after them the next one is left as it is."""
BARE_YOUNG: Final = 60.0
"""Where nothing was ever guarded a bare pod is deleted within so many seconds of its appearance, or never: until then
it has hardly trained."""
ENDED: Final = frozenset({Phase.COMPLETED, Phase.GAVE_UP, Phase.UNGUARDED})


def came_bare(context: Context, stored: GroupStatus, seen: SeenPod) -> bool:
    """True for a pod that should be created anew so that it is injected."""
    pod = seen.pod
    if pod.injected or pod.refused or pod.deleting or stored.phase in ENDED:
        return False
    age = context.now - seen.first_seen
    if not (stored.generation or (seen.newborn and age <= BARE_YOUNG)):
        return False
    if age <= BARE_WAIT or context.view.bare.get((pod.key, pod.index), 0) >= BARE_TRIES:
        return False
    return pod.index == 0 or context.job.isolated or not stored.world
