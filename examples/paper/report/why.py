"""Why claims were not reproduced, in words; and where static checkpoints win, why.

The keys are those of `claims.CLAIMS`, and "per-layer" followed by a colon and a network for where
policies lose to per-layer checkpointing. A text is shown only if its claim's verdict is not
'reproduced', or if there is such a loss: texts that are no longer needed do no harm.
"""

from __future__ import annotations

from collections.abc import Mapping

WHY: Mapping[str, str] = {}
