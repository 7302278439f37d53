"""`coop_jax.run`: the front end that sees the whole program before anything runs.

A call goes: flatten the arguments; find (or trace) the program of their signature; find (or make)
the plan for where the arguments lie; carry it out. In the steady state of a training loop the two
in the middle are one look at the arguments (see `fast_path`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

import jax

from coop_jax._src.compat import arrays, contexts, thread_state, transfers, transforms
from coop_jax._src.compat import refs as compat_refs
from coop_jax._src.execution.function_settings import FunctionSettings, FunctionUnderBudget
from coop_jax._src.execution.homes import Home
from coop_jax._src.execution.runtime import Runtime, check_runtime
from coop_jax._src.execution.wrapped_function import WrappedFunction, applied
from coop_jax._src.lowering.pass_options import PassOptions
from coop_jax._src.lowering.passes import fusion as fusing
from coop_jax._src.planning import planner, policies
from coop_jax._src.run import previews
from coop_jax._src.run.argument_passing import LeafKinds, as_results, contents_of, read_inputs
from coop_jax._src.run.call_trees import CallTrees
from coop_jax._src.run.dynamic_call import run_online
from coop_jax._src.run.fast_path import UNKNOWN, LastCall, known_form, note
from coop_jax._src.run.planned_call import run_planned
from coop_jax._src.run.specialization import (
    Signature,
    compile_all,
    engine_program_of,
    traced_signature,
)
from coop_jax._src.run.transformed_calls import TransformedCalls
from coop_jax._src.simulate.simulation import Simulation
from coop_jax._src.simulate.traced_program import TracedProgram
from coop_jax._src.util import budget as budgets
from coop_jax._src.util import options
from coop_jax._src.util.call_arguments import check_leaves
from coop_jax._src.util.calling_convention import Fixed, Names, Numbers, convention_of
from coop_jax._src.util.interrupts import guarded
from coop_jax._src.util.recent import Recent

P = ParamSpec("P")
R = TypeVar("R")


def run(
    fn: Callable[P, R],
    budget: int | float | str | None = None,
    policy: str | policies.Policy | None = None,
    donate_argnums: Numbers = None,
    static_argnums: Numbers = None,
    device: jax.Device | None = None,
    runtime: Runtime | None = None,
    *,
    donate_argnames: Names = None,
    static_argnames: Names = None,
    fusion: bool | None = None,
) -> BudgetedFunction[P, R]:
    """Makes a function run under a hard memory budget.

    Args:
      fn: a function of pytrees of arrays, as for `jax.jit`; it may be jitted already, with what is
        donated and static there, also by `flax.nnx.jit` or `equinox.filter_jit`, with their
        semantics.
      budget: bytes (int), a string such as "512MiB" or "2GB", a fraction in (0, 1] of what the
        function needs at its peak without a budget, or None for no cap. It counts everything the
        call keeps on the device: arguments, values, results, temporary memory.
      policy: "lookahead", which searches for a plan for some seconds where memory is short, "coop"
        (the paper's), "dtr", "dte", or a `coop_jax.Policy`. If None, "lookahead".
      donate_argnums: positions of arguments that the function replaces (parameters, optimizer
        state). They are updated in place; the arrays passed in cannot be used afterwards.
      static_argnums: positions of arguments that are Python values, not arrays; hashable.
      device: the device to run on. If None, and no runtime is given, calls run on JAX's default
        device (`jax.default_device`), with one runtime for each such device.
      runtime: a `Runtime` to share. It has a budget, policy and device, so none of them may be
        given as well. Inside `with Runtime(...)`, functions without a budget use that runtime.
      donate_argnames: names of arguments that the function replaces. As for `jax.jit`, names are
        found by positions, and positions by names, where only one is given.
      static_argnames: names of arguments that are Python values.
      fusion: whether operations that XLA can fuse run as one: faster, and values that are cheap to
        compute are not stored. Results are bitwise equal at every budget, but may differ in the
        last bits from those without fusion. If None, on unless COOP_JAX_FUSION is 0. Always off
        with data-dependent control flow and under `jax.grad` and the like.

    Returns:
      A function of the same arguments and results, with `runtime` (after the first call).

    Raises:
      TypeError, ValueError: arguments that make no sense, before any tracing.

    Example:
      >>> import coop_jax, jax, jax.numpy as jnp
      >>> def step(w, x):
      ...     loss, grad = jax.value_and_grad(lambda w: (jnp.tanh(x @ w) ** 2).mean())(w)
      ...     return w - 0.1 * grad, loss
      >>> budgeted = coop_jax.run(step, budget="1MiB", donate_argnums=0)
      >>> w, loss = budgeted(jnp.ones((16, 16)), jnp.ones((4, 16)))
      >>> w.shape, float(loss) > 0
      ((16, 16), True)
    """
    if not callable(fn):
        raise TypeError(f"fn must be a function of arrays, got {type(fn).__name__}")
    convention = convention_of(fn, donate_argnums, donate_argnames, static_argnums, static_argnames)
    checked = budgets.check_budget(budget)
    resolved = None if policy is None else policies.resolve_policy(policy)
    check_runtime(runtime, checked, resolved, device)
    home = Home(device, runtime, resolved, joins=checked is None)
    fused = fusing.is_default() if fusion is None else options.flag(fusion, "fusion")
    return applied(
        lambda taken: BudgetedFunction(FunctionSettings(taken, checked, resolved, home, fused)),
        convention,
        WrappedRun,
    )


class BudgetedFunction(FunctionUnderBudget, Generic[P, R]):
    """A function under a budget; made by `run`. Calls are thread-safe, one at a time."""

    def __init__(self, settings: FunctionSettings):
        super().__init__(settings)
        self._convention = settings.convention
        self._passes = PassOptions.from_environment()
        self._signatures: Recent[Signature] = Recent(64)  # with the last call beside them
        self._transformed = TransformedCalls(settings, BudgetedFunction)

    def __repr__(self) -> str:
        return f"<coop_jax.run of {self._convention.fn!r}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the function; results are ordinary arrays that live in the pool.

        Raises:
          BudgetExceededError: the budget does not suffice; nothing has run, nothing is lost.
          RuntimeError: an argument was deleted, or the call comes from inside another one, or
            from a program that JAX traces (jit, scan).
          NotImplementedError: the program holds something that cannot run here.
        """
        if not transforms.at_top():
            return self._transformed(args, kwargs)  # type: ignore[no-any-return]
        last = self._signatures.latest
        leaves = form = None
        if last is not None and last.context is contexts.current():
            leaves = last.leaves(args, kwargs)
            form = known_form(last.runtime, last.signature)
        if last is not None and form is not None and form.known is not None and leaves is not None:
            result = last.runtime.call(
                last.context.values, form.known.repeat, last.signature, form, leaves, last.trees
            )
            if result is not UNKNOWN:
                return result  # type: ignore[no-any-return]
        if leaves is None or last is None or not last.kinds.match(leaves):
            static, leaves, tree = self._convention.flatten(args, kwargs)
            last = guarded(
                None, None, thread_state.restoring(), self._look_up, static, leaves, tree
            )
            self._signatures.latest = last
        return last.runtime.call(last.context.values, self._run, last, leaves)  # type: ignore[no-any-return]

    def _look_up(self, static: Fixed, leaves: list[Any], tree: Any) -> LastCall:
        """The signature of a call that is not like the last one, found or made."""
        context = contexts.current()
        kinds = self._kinds_of(static, leaves, tree)
        key = (tree, static, kinds.keys, context)
        signature = self._signatures.get(key)
        if signature is None:
            donated = self._convention.donated(tree)
            signature = self._trace(static, leaves, tree, donated)
            if (last := self._signatures.latest) is not None:
                signature.places = last.signature.places
            self._signatures[key] = signature
        runtime = self._home.here() or self._make_runtime(signature)
        trees = CallTrees(static, signature.out_tree)
        return LastCall(self._convention, tree, static, context, kinds, signature, runtime, trees)

    def _kinds_of(self, static: Fixed, leaves: list[Any], tree: Any) -> LeafKinds:
        check_leaves(leaves, "coop_jax.run")
        transfers.check_places(leaves, self._home.device())
        try:
            return LeafKinds(leaves, self._home.device())
        except (TypeError, OverflowError):
            self._convention.check(static, leaves, tree)
            raise

    def simulate(self, *args: Any, budget: budgets.Budget = None, **kwargs: Any) -> Simulation:
        """Says what a first call with these arguments does, without doing it.

        Later calls may run segments, several operations in one launch, which recompute otherwise.

        Decisions are those of the call if its workspace is known: after a first call, or where the
        runtime was given one.

        Args:
          *args: of the call; arrays or `jax.ShapeDtypeStruct`s.
          budget: as for `run`; that of the function if None.
          **kwargs: of the call, likewise.

        Returns:
          What the call will do.

        Raises:
          ValueError: the order of operations depends on values.
        """
        return previews.simulate(self._settings, self._known, args, kwargs, budget)

    def traced(self, *args: Any, **kwargs: Any) -> TracedProgram:
        """The program that `simulate` plans: its operations and storages have the plan's numbers.

        Raises:
          ValueError: the order of operations depends on values.
        """
        return previews.traced(self._settings, self._known, args, kwargs)

    def min_budget(self, *args: Any, max_overhead: float | None = None, **kwargs: Any) -> int:
        """The smallest budget with which a call completes, as `coop_jax.min_budget` finds it.

        Args:
          *args: of the call, as for `simulate`.
          max_overhead: the most recompute seconds / compute seconds that will do; None for any.
          **kwargs: of the call, likewise.

        Returns:
          Bytes.

        Raises:
          ValueError: no budget would do; or as `simulate`.
        """
        return previews.min_budget(self._settings, self._known, args, kwargs, max_overhead)

    def workspaces(self, *args: P.args, **kwargs: P.kwargs) -> tuple[int, ...]:
        """Bytes of XLA's temporary memory for each operation of a call, as for `simulate`.

        Raises:
          RuntimeError: no call with such arguments was made before, which compiles the operations.
        """
        signature = self._known(*self._convention.flatten(args, kwargs))
        if signature is None or signature.workspaces is None:
            raise RuntimeError("what operations need is known once they were compiled: call first")
        return tuple(signature.workspaces)

    def _known(self, static: Fixed, leaves: list[Any], tree: Any) -> Signature | None:
        key = (tree, static, self._kinds_of(static, leaves, tree).keys, contexts.current())
        return self._signatures.get(key)

    def _trace(
        self, static: Fixed, leaves: list[Any], tree: Any, donated: tuple[bool, ...]
    ) -> Signature:
        call, device = (static, leaves, tree), self._home.device()
        fusion, passes = self._settings.fusion, self._passes
        return traced_signature(
            self._convention, *call, donated, device, fusion=fusion, passes=passes
        )

    def runtime_for(self, leaves: Sequence[Any]) -> Runtime:
        """The runtime, made for a call with these leaves as its arguments."""
        runtime = self._home.here()
        if runtime is None:
            _, flat, tree = self._convention.flatten(tuple(leaves), {})
            runtime = self._make_runtime(self._trace((), flat, tree, (False,) * len(flat)))
        return runtime

    def _make_runtime(self, signature: Signature) -> Runtime:
        budget, device = self._settings.budget, self._home.device()
        policy = self._settings.policy or policies.resolve_policy(policies.DEFAULT)
        unlimited = None
        if isinstance(budget, float):
            program = signature.program
            if program is None:
                raise ValueError(
                    "a budget that is a fraction needs a program that is known ahead, and this one"
                    " has a while_loop or cond. Give the budget in bytes, for example half of"
                    " runtime.stats().peak_bytes after a call with budget=None."
                )
            unlimited = Runtime(None, policy, device)
            first = planner.first_residency(program)
            peak = planner.unbudgeted_peak(
                program,
                engine_program_of(signature, program, first.donated),
                unlimited.settings,
                max(compile_all(signature, program, unlimited), default=0),
            )
            budget = max(1, int(peak * budget))
        made = Runtime(budget, policy, device)
        return self._home.keep(made if unlimited is None else made.counting_from(unlimited))

    def _run(self, call: LastCall, leaves: list[Any]) -> Any:
        uses = call.signature.key_uses
        if uses is not None:
            uses.check(leaves)
        with arrays.compiling():
            results = self._run_compiled(call, leaves)
        if uses is not None:
            uses.note(leaves, results)
        return jax.tree_util.tree_unflatten(call.signature.out_tree, results)

    def _run_compiled(self, call: LastCall, leaves: list[Any]) -> list[jax.Array]:
        signature, runtime = call.signature, call.runtime
        interrupts = runtime.interrupts
        given = [*leaves, *signature.refs]
        refs = [x for x in given if compat_refs.is_ref(x)] if signature.has_refs else []
        if refs:
            contents = iter(contents_of(refs))
            given = [next(contents) if compat_refs.is_ref(x) else x for x in given]
        inputs = read_inputs(given, signature.kinds, runtime.device)
        ran = None
        if signature.program is None:
            values = run_online(runtime, signature, inputs, interrupts)
        else:
            ran = run_planned(runtime, signature, inputs, interrupts, fused=self._settings.fusion)
            values = ran.values
        if refs:
            last = values[len(signature.out_avals) :]
            values = values[: len(signature.out_avals)]
            for ref, value in zip(refs, last, strict=True):
                compat_refs.set_contents(ref, arrays.committed(value))
        results = as_results(values, signature.out_avals, inputs, runtime.device)
        if ran is not None and signature.key_uses is None:
            note(runtime, signature, call.kinds, leaves, inputs, ran, results)
        return results


class WrappedRun(WrappedFunction[P, R, BudgetedFunction[P, R]]):
    """A function of `run` under a library's `jit`: its arguments are those of the wrapper."""

    def simulate(self, *args: Any, budget: budgets.Budget = None, **kwargs: Any) -> Simulation:
        """Says what a first call with these arguments does, without doing it; as of `run`."""

        def question(*args: Any, **kwargs: Any) -> Simulation:
            return self._inner.simulate(*args, budget=budget, **kwargs)

        return self._wrapper.ask(question, args, kwargs)

    def traced(self, *args: Any, **kwargs: Any) -> TracedProgram:
        """The program that `simulate` plans; as of `run`."""
        return self._wrapper.ask(self._inner.traced, args, kwargs)

    def min_budget(self, *args: Any, max_overhead: float | None = None, **kwargs: Any) -> int:
        """The smallest budget with which a call completes; as of `run`."""

        def question(*args: Any, **kwargs: Any) -> int:
            return self._inner.min_budget(*args, max_overhead=max_overhead, **kwargs)

        return self._wrapper.ask(question, args, kwargs)

    def workspaces(self, *args: P.args, **kwargs: P.kwargs) -> tuple[int, ...]:
        """Bytes of XLA's temporary memory for each operation of a call; as of `run`."""
        return self._wrapper.ask(self._inner.workspaces, args, kwargs)
