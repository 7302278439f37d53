"""Train JAX programs under a hard memory budget, without annotations."""

from coop_jax._core import Drop as Drop
from coop_jax._core import Evict as Evict
from coop_jax._core import Placement as Placement
from coop_jax._core import Run as Run
from coop_jax._src.eager.api import remat_eager as remat_eager
from coop_jax._src.execution.recomputations import RecomputedOperation as RecomputedOperation
from coop_jax._src.execution.runtime import Runtime as Runtime
from coop_jax._src.execution.runtime_report import RuntimeReport as RuntimeReport
from coop_jax._src.execution.stats import Stats as Stats
from coop_jax._src.execution.verification import VerificationError as VerificationError
from coop_jax._src.ir.cost_model import DeviceProfile as DeviceProfile
from coop_jax._src.jit.api import jit as jit
from coop_jax._src.jit.fitting import Attempt as Attempt
from coop_jax._src.jit.report import PlannedLine as PlannedLine
from coop_jax._src.jit.report import PlanReport as PlanReport
from coop_jax._src.planning.policies import Policy as Policy
from coop_jax._src.report.api import memory as memory
from coop_jax._src.report.memory_report import MemoryReport as MemoryReport
from coop_jax._src.report.oom import explain_oom as explain_oom
from coop_jax._src.report.recording import Recording as Recording
from coop_jax._src.report.recording import record_timeline as record_timeline
from coop_jax._src.report.timeline import Timeline as Timeline
from coop_jax._src.report.timeline import timeline as timeline
from coop_jax._src.report.timeline_data import LiveLine as LiveLine
from coop_jax._src.run.api import run as run
from coop_jax._src.run.budget_queries import min_budget as min_budget
from coop_jax._src.run.budget_queries import sweep as sweep
from coop_jax._src.simulate.budget_search import cutoff_budget as cutoff_budget
from coop_jax._src.simulate.measured_costs import MeasuredCosts as MeasuredCosts
from coop_jax._src.simulate.measured_costs import record_costs as record_costs
from coop_jax._src.simulate.program_files import load_program as load_program
from coop_jax._src.simulate.program_files import save_program as save_program
from coop_jax._src.simulate.simulation import Simulation as Simulation
from coop_jax._src.simulate.simulator import simulate as simulate
from coop_jax._src.simulate.traced_program import TracedProgram as TracedProgram
from coop_jax._src.simulate.traced_program import trace_program as trace_program
from coop_jax._src.util.budget import parse_bytes as parse_bytes
from coop_jax._src.util.errors import BudgetExceededError as BudgetExceededError
from coop_jax._src.util.errors import BudgetReport as BudgetReport
from coop_jax._src.util.errors import CompiledBudgetReport as CompiledBudgetReport
from coop_jax._src.util.errors import ProgramFileError as ProgramFileError
from coop_jax._src.util.held_memory import HeldStorage as HeldStorage

__version__ = "0.1.0"
