"""PyTorch's side of `torch_budget`: the GPT's train step under PyTorch's memory budget, measured.

It imports nothing but torch, and runs in a process of its own: JAX and torch do not meet, and torch
may live in another environment. `python -m tests.benchmarks.torch_gpt FOLDER [BUDGET ...]` reads
the GPT from the folder (`torch_budget.write_gpt`), and prints a line of JSON for each budget. With
"inductor" among the budgets, Inductor compiles a step for each, too.

Model: `torch.compile` with the decompositions and the partitioner of its default backend
(`min_cut_rematerialization_partition`, `activation_memory_budget`), as the backend
"aot_eager_decomp_partition" has them. The forward and the backward graph then run one operation at
a time, each value released after its last use: as the code that PyTorch generates for a graph does.

Memory: bytes of storages that are alive, each counted once: parameters, the batch and the mask,
what the forward pass saves, gradients, and what operations make in between. What an operation
allocates within itself does not count. Recomputed is an operation of the backward graph that the
forward graph has, too. Views are no operations.

Inductor: memory of the code that it generates, from the allocations of that code. What is computed
again is taken from the graphs above, which the same partitioner makes.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # its usual name
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch_config
from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition
from torch._inductor import config as inductor_config
from torch._inductor.compile_fx import select_decomp_table
from torch._inductor.custom_graph_pass import CustomPartitionerFn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.flop_counter import flop_registry

Parameters = dict[str, torch.Tensor]
Loss = Callable[[Parameters, torch.Tensor], torch.Tensor]


@dataclasses.dataclass
class Row:
    """A train step under a budget. Sizes in bytes.

    Attributes:
      budget: share of the activations that the default partition saves; None: nothing is computed
        again (the default partitioner of `aot_autograd`).
      loss: of the step.
      gradient_norm: of all gradients.
      argument_bytes: of parameters, batch and mask.
      held_bytes: alive between the passes beside these.
      peak_bytes: most bytes alive at once.
      matmul_flops: of matrix products, recomputed ones included.
      operations: executed, as [recomputed, FLOPs of matrix products, bytes read and written].
      inductor_bytes: held between the passes and at the peak by Inductor's code; None if unknown.
    """

    budget: float | None
    loss: float
    gradient_norm: float
    argument_bytes: int
    held_bytes: int
    peak_bytes: int
    matmul_flops: int
    operations: list[tuple[bool, int, int]]
    inductor_bytes: tuple[int, int] | None = None


class Record:
    """Storages that are alive, and what was executed."""

    def __init__(self) -> None:
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self.argument_bytes = self.peak_bytes = 0
        self.operations: list[tuple[bool, int, int]] = []

    def alive_bytes(self) -> int:
        """Of all storages that something refers to."""
        self._storages = {k: x for k, x in self._storages.items() if not x[0].expired()}
        return sum(nbytes for _, nbytes in self._storages.values())

    def add(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Counts what is new of these; whether any is."""
        self.alive_bytes()  # an address that is used again belongs to a new storage
        before = len(self._storages)
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._storages:
                reference = StorageWeakRef(storage), storage.nbytes()
                self._storages[storage._cdata] = reference
        self.peak_bytes = max(self.peak_bytes, self.alive_bytes())
        return len(self._storages) > before


class Graph(torch.fx.Interpreter):
    """Runs a graph, one operation at a time, and writes down what it does."""

    def __init__(self, module: torch.fx.GraphModule, records: list[Record], known: set[str]):
        super().__init__(module)
        self._records, self._known = records, known
        self._is_known = False

    def run_node(self, node: torch.fx.Node) -> Any:
        self._is_known = node.name in self._known
        return super().run_node(node)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = super().call_function(target, args, kwargs)
        results, operands = list(tensors_in(result)), list(tensors_in((args, kwargs)))
        record = self._records[-1]
        if not record.add(results):
            return result
        packet, flops = getattr(target, "overloadpacket", None), 0
        if packet in flop_registry:
            flops = int(flop_registry[packet](*args, **kwargs, out_val=result))
        moved = sum(x.numel() * x.element_size() for x in {*results, *operands})
        record.operations.append((self._is_known, flops, moved))
        return result


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Tensors in nested lists, tuples and dictionaries."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_in(part)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


def backend(records: list[Record], *, recomputes: bool) -> Callable[..., Any]:
    """For `torch.compile`: partitions as configured, and fills in the last record."""
    forward: set[str] = set()

    def compiled(
        module: torch.fx.GraphModule, _: Sequence[Any], *, is_forward: bool
    ) -> Callable[[list[Any]], Any]:
        graph = Graph(module, records, set() if is_forward else forward)
        if is_forward:
            forward.update(n.name for n in module.graph.nodes if n.op == "call_function")

        def run(args: list[Any]) -> Any:
            records[-1].add(list(tensors_in(args)))
            if is_forward:
                records[-1].argument_bytes = records[-1].alive_bytes()
            results = graph.boxed_run(args)
            graph.env.clear()  # an interpreter keeps the results
            return results

        run._boxed_call = True  # type: ignore[attr-defined]  # arguments go with their last use
        return run

    partition = functools.partial(min_cut_rematerialization_partition, compiler="inductor")
    return aot_autograd(  # type: ignore[no-any-return]
        fw_compiler=functools.partial(compiled, is_forward=True),
        bw_compiler=functools.partial(compiled, is_forward=False),
        partition_fn=partition if recomputes else default_partition,
        decompositions=select_decomp_table(),
    )


def settings_of(budget: float | None) -> dict[str, Any]:
    """PyTorch's configuration for a budget."""
    return {
        "activation_memory_budget": 1.0 if budget is None else budget,
        "activation_memory_budget_solver": "dp",
        "activation_memory_budget_runtime_estimator": "flops",
    }


def measured(loss: Loss, parameters: Parameters, batch: torch.Tensor, budget: float | None) -> Row:
    """One forward and backward pass under a budget."""
    torch._dynamo.reset()
    records: list[Record] = []
    with functorch_config.patch(settings_of(budget)):
        chosen = backend(records, recomputes=budget is not None)
        step = torch.compile(loss, backend=chosen, fullgraph=True)
        for _ in range(2):  # the first one compiles, and holds what it compiles with
            records.append(Record())
            value = step(parameters, batch)
            held_bytes = records[-1].alive_bytes() - records[-1].argument_bytes
            gradients = torch.autograd.grad(value, list(parameters.values()))
            norm = math.sqrt(sum(g.double().square().sum().item() for g in gradients))
            del gradients
    record = records[-1]
    return Row(
        budget,
        value.item(),
        norm,
        record.argument_bytes,
        held_bytes,
        record.peak_bytes,
        sum(flops for _, flops, _ in record.operations),
        record.operations,
    )


def gpt_loss(heads: int, layers: int, length: int) -> Loss:
    """`plain_jax.GPT` and its loss, as PyTorch's users write them; Flax's names of parameters."""
    mask = torch.ones(length, length, dtype=torch.bool).tril()

    def dense(p: Parameters, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, p[f"{name}/kernel"].T, p[f"{name}/bias"])

    def norm(p: Parameters, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:], p[f"{name}/scale"], p[f"{name}/bias"], eps=1e-6)

    def block(p: Parameters, name: str, x: torch.Tensor) -> torch.Tensor:
        batch, _, width = x.shape
        y = dense(p, f"{name}/Dense_0", norm(p, f"{name}/LayerNorm_0", x))
        y = y.view(batch, length, 3, heads, width // heads)
        q, k, v = (part.transpose(1, 2) for part in y.unbind(2))
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // heads)
        scores = torch.where(mask, scores, -1e9)
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape)
        x = x + dense(p, f"{name}/Dense_1", y)
        y = dense(p, f"{name}/Dense_2", norm(p, f"{name}/LayerNorm_1", x))
        return x + dense(p, f"{name}/Dense_3", F.gelu(y, approximate="tanh"))

    def loss(p: Parameters, tokens: torch.Tensor) -> torch.Tensor:
        embedding = p["Embed_0/embedding"]
        x = F.embedding(tokens[:, :-1], embedding) + p["positions"]
        for layer in range(layers):
            x = block(p, f"Block_{layer}", x)
        logits = norm(p, "LayerNorm_0", x) @ embedding.T
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    return loss


def read_gpt(folder: pathlib.Path) -> tuple[Loss, Parameters, torch.Tensor]:
    """What `torch_budget.write_gpt` wrote: loss, parameters, tokens."""
    said = json.loads((folder / "gpt.json").read_text())
    numbers = torch.frombuffer(bytearray((folder / "parameters").read_bytes()), dtype=torch.float32)
    sizes = [math.prod(shape) for shape in said["shapes"].values()]
    parameters = {
        name: part.reshape(shape).clone().requires_grad_()
        for (name, shape), part in zip(said["shapes"].items(), numbers.split(sizes), strict=True)
    }
    # Targets have to be int64 in PyTorch.
    tokens = torch.tensor(said["tokens"], dtype=torch.int64)
    layers = len({name.partition("/")[0] for name in parameters if name.startswith("Block_")})
    return gpt_loss(said["heads"], layers, tokens.shape[1] - 1), parameters, tokens


class SaveAll(CustomPartitionerFn):  # type: ignore[misc]  # untyped
    """The partitioner that computes nothing again, for Inductor."""

    def __call__(self, module: torch.fx.GraphModule, inputs: Any, **options: Any) -> Any:
        options.pop("compiler")
        return default_partition(module, inputs, **options)

    def uuid(self) -> str:
        return "save all"


def recorded_allocations() -> list[Record]:
    """Has all code that Inductor generates from now on add what it allocates to the last record."""
    records = [Record()]
    allocate = torch._C._dynamo.guards._empty_strided_cpu

    def recorded(*args: Any) -> torch.Tensor:
        tensor: torch.Tensor = allocate(*args)
        records[-1].add([tensor])
        return tensor

    torch._C._dynamo.guards._empty_strided_cpu = recorded
    return records


def inductor_bytes(
    records: list[Record], loss: Loss, p: Parameters, batch: torch.Tensor, budget: float | None
) -> tuple[int, int]:
    """Held between the passes, and at the peak; `records` of `recorded_allocations`."""
    torch._dynamo.reset()
    save_all = SaveAll() if budget is None else None
    with (
        functorch_config.patch(settings_of(budget)),
        inductor_config.patch(custom_partitioner_fn=save_all),
    ):
        step = torch.compile(loss, backend="inductor", fullgraph=True)
        for _ in range(2):  # the first one compiles
            records[-1] = record = Record()
            record.add([*p.values(), batch])
            arguments = record.alive_bytes()
            value = step(p, batch)
            held_bytes = record.alive_bytes() - arguments
            torch.autograd.grad(value, list(p.values()))
    return held_bytes, record.peak_bytes


def main(folder: str, *budgets: str) -> None:
    """Prints the rows, that without recomputation first."""
    loss, parameters, tokens = read_gpt(pathlib.Path(folder))
    records = recorded_allocations() if "inductor" in budgets else None
    for budget in (None, *(float(budget) for budget in budgets if budget != "inductor")):
        row = measured(loss, parameters, tokens, budget)
        if records is not None:
            row.inductor_bytes = inductor_bytes(records, loss, parameters, tokens, budget)
        print(json.dumps(dataclasses.asdict(row)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
