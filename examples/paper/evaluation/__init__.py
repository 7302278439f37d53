"""The numbers of the evaluation: what is simulated, as tables. See `simulating.simulate`."""

from examples.paper.evaluation.methods import DEVICE_BYTES as DEVICE_BYTES
from examples.paper.evaluation.methods import METHODS as METHODS
from examples.paper.evaluation.methods import RATIOS as RATIOS
from examples.paper.evaluation.simulating import simulate as simulate
