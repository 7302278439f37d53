"""Train JAX programs under a hard memory budget, without annotations."""

from coop_jax._src.budget import parse_bytes as parse_bytes
from coop_jax._src.eager import remat_eager as remat_eager
from coop_jax._src.errors import BudgetExceededError as BudgetExceededError
from coop_jax._src.errors import BudgetReport as BudgetReport
from coop_jax._src.policies import Policy as Policy
from coop_jax._src.run import run as run
from coop_jax._src.runtime import Runtime as Runtime
from coop_jax._src.stats import Stats as Stats
from coop_jax._src.verify import VerificationError as VerificationError

__version__ = "0.1.0"
