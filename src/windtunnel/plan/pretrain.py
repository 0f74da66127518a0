"""Plan pretraining of a GPT: its depth where that is 'auto', hyper-parameters, layout and pace."""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.model import GPTShape, HyperParameters, derive, recipe_shape
from windtunnel.recipe import Recipe, SudokuCorpus
from windtunnel.rig import Rig

from .alternatives import AS_IT_IS, Change, changed
from .constants import UNSEEN_MEMORY_ERROR, Constants, GPTConstants, load_constants
from .cost import (
    EPOCHS_WARN,
    Length,
    Pace,
    budget_hours,
    budget_tokens,
    held_out_tokens,
    round_steps,
    steps_between,
    vocabulary,
)
from .engine_gpt import SOURCES, Passes
from .gpt_shards import is_sharded
from .gpt_work import GPTTraining, check_own_layout, checkpoint_gib, passes_of, ways_to_shard, weights_gib
from .plan import Case, Draft, StagePlanner, parts_text
from .search import Candidate, search
from .steptime import LAUNCHES
from .text import count_text, hours_text

DEPTHS = tuple(range(2, 65, 2))
# Without a limit in time or tokens 'auto' has nothing to stop at: what people wait for.
UNBUDGETED_HOURS = {"cpu": 1.0, "cuda": 24.0}


@dataclass(frozen=True)
class Sized:
    """A recipe of one depth on a rig."""

    depth: int
    shape: GPTShape
    hyper: HyperParameters
    candidate: Candidate
    notes: tuple[str, ...]
    passes: Passes


class Pretraining(StagePlanner):
    """The planner of `pretrain` stages."""

    def changes(self, recipe: Recipe, rig: Rig) -> list[list[Change]]:
        """See StagePlanner: recomputation, a smaller micro-batch, fewer passes, less depth."""
        free, found = _free(recipe), _sharing(recipe, rig)
        if recipe.pretrain.graphs is True:
            found.append([Change(("stages.pretrain.graphs=auto",), "recorded only where there is room")])
        if recipe.recomputes and recipe.layout.recompute is not None:
            found.append([Change((f"layout.recompute={again}",), f"every {again} computed again") for again in ("step", "block")])
        return [*found, *([[free]] if free.sets else []), *_fewer_passes(recipe), self._shallower(recipe, rig)]

    def elsewhere(self, recipe: Recipe) -> list[Change]:
        """See StagePlanner: the micro-batch of one rig is not that of another."""
        return [_free(recipe)]

    def stand_ins(self, recipe: Recipe, rig: Rig) -> list[list[Change]]:
        """See StagePlanner: the same model, less deep."""
        return [self._shallower(recipe, rig)]

    def _shallower(self, recipe: Recipe, rig: Rig) -> list[Change]:
        """Return the largest depth that fits."""
        free = _free(recipe)
        tried = changed(recipe, free.sets)
        depth = deepest_that_fits(tried, rig, vocabulary(recipe)[0], _constants(rig, None))
        if depth is None or depth >= int(recipe.gpt.depth):
            return []
        return [Change((f"model.depth={depth}", *free.sets), f"depth {depth}, the largest that fits")]

    def draft(self, case: Case) -> Draft:
        """See StagePlanner."""
        recipe, rig = case.recipe, case.rig
        check_own_layout(recipe, rig)
        c = _constants(rig, case.constants)
        vocab, vocab_source = (case.vocab, "prepared data") if case.vocab is not None else vocabulary(recipe)
        corpus, corpus_source = case.corpus
        auto, chosen = recipe.gpt.depth == "auto", []
        if auto:
            depth, reason = pick_depth(recipe, rig, vocab, c, corpus)
            recipe, chosen = at_depth(recipe, depth), [f"auto: {reason}"]
        sized = size_up(recipe, rig, vocab, c)
        shape, best = sized.shape, sized.candidate
        speed = pace(recipe, best, c, corpus)
        error = {"memory": _memory_error(c, best), "time": _time_error(c, sized)}

        def notes(length: Length, fits: bool) -> list[str]:
            return [*chosen, *sized.notes, *(_length_notes(recipe, sized, length, corpus, auto) if fits else ())]

        def sources(length: Length) -> dict[str, str]:
            found = {"depth": chosen[0] if auto else "recipe", "vocab": vocab_source, "corpus_tokens": corpus_source}
            return found | _sources(rig, sized, corpus_source)

        return Draft(
            c=c,
            best=best,
            model=_model(sized),
            method="pretrain",
            depth=sized.depth,
            params=shape.parameters,
            parameters={"matrices": shape.matrix_parameters, "tables": shape.table_parameters, "head": shape.head_parameters},
            vocab=vocab,
            tokens=float(best.layout.batch_tokens),
            step_seconds=best.timed.seconds,
            terms=best.timed.terms,
            hidden=best.timed.hidden,
            flops=shape.flops_per_token,
            masked=shape.masked_flops_per_token,
            gpus=best.layout.ranks,
            startup={"start, compile, last checkpoint": speed.startup_seconds},
            pace=speed,
            derived_tokens=sized.hyper.tokens.value,
            derived_by="stages.pretrain.tokens_per_parameter",
            corpus=corpus,
            epoch_tokens=corpus,
            checkpoint_gib=checkpoint_gib(shape, sized.passes.averaged),
            kept_gib=weights_gib(shape),
            token_bytes=2,
            hyper={name: value for name, value, _ in sized.hyper.rows()},
            error=error,
            reasons=[] if best.fits else [_memory_reason(sized, recipe.pretrain.micro_batch)],
            feeds=lambda length: _what_data_feed(recipe, rig, vocab, c, corpus, sized, speed, length),
            notes=notes,
            sources=sources,
            # A puzzle is another one every epoch: under a symmetry drawn anew.
            repeats=not isinstance(recipe.data.corpus, SudokuCorpus),
        )

    def resolve(self, case: Case) -> Recipe:
        """See StagePlanner: depth 'auto' becomes a number."""
        recipe, rig = case.recipe, case.rig
        if recipe.gpt.depth != "auto":
            return recipe
        vocab = case.vocab if case.vocab is not None else vocabulary(recipe)[0]
        return at_depth(recipe, pick_depth(recipe, rig, vocab, _constants(rig, case.constants), case.corpus[0])[0])


PLANNER = Pretraining()


def _constants(rig: Rig, given: Constants | None) -> GPTConstants:
    assert given is None or isinstance(given, GPTConstants)
    return given or load_constants(rig.gpu.name if rig.gpu else None)


def _free(recipe: Recipe) -> Change:
    """Give the micro-batch back to the planner, where the recipe fixed it."""
    return AS_IT_IS if recipe.pretrain.micro_batch is None else Change(("stages.pretrain.micro_batch=null",), "")


def _sharing(recipe: Recipe, rig: Rig) -> list[list[Change]]:
    """Return what keeps ranks from sharing weights and gradients too, undone."""
    if rig.gpus <= 1 or recipe.trm is not None or "full" in ways_to_shard(recipe, rig):
        return []
    sets = ["layout.shard=full"] if recipe.layout.shard is not None else []
    sets += ["stages.pretrain.graphs=auto"] if recipe.pretrain.graphs is True else []
    return [[Change((*sets, *_free(recipe).sets), "weights and gradients shared too")]]


def _fewer_passes(recipe: Recipe) -> list[list[Change]]:
    """Of a recursive GPT: gradients that end sooner, or the most supervision steps, loops or cycles that fit; each by itself."""
    if recipe.trm is None:
        return []
    given = recipe.trm.resolved
    # Of the steps that one backward pass covers nothing is freed before it.
    tried = {"detach_from": [0] if given.detach_from > 0 and given.supervision > 1 else []}
    for key in ("supervision", "loops", "cycles"):
        count = getattr(given, key)
        fewer = {count * quarters // 4 for quarters in (3, 2, 1)} | {1}
        tried[key] = sorted(fewer - {0, count}, reverse=True)
    return [[Change((f"trm.{key}={value}",), "fewer passes") for value in values] for key, values in tried.items()]


def at_depth(recipe: Recipe, depth: int) -> Recipe:
    """Return the recipe with its depth set."""
    return recipe.model_copy(update={"model": recipe.gpt.model_copy(update={"depth": depth})})


def size_up(recipe: Recipe, rig: Rig, vocab: int, constants: GPTConstants) -> Sized:
    """Find shape, hyper-parameters and best layout of a recipe whose depth is a number."""
    assert recipe.gpt.depth != "auto"
    shape = recipe_shape(recipe, vocab)
    hyper, passes = derive(recipe, vocab), passes_of(recipe, shape)
    again = recipe.layout.recompute if passes.repeat else None
    tried: list[Sized] = []
    for shard in ways_to_shard(recipe, rig):
        work = GPTTraining(shape, passes, recipe.pretrain, int(hyper.batch_tokens.value), again, constants, shard)
        found = search(work, rig, rig.gpus or 1)
        assert found is not None
        tried.append(Sized(recipe.gpt.depth, shape, hyper, found.best, tuple(work.notes(found)), passes))
        if found.best.fits:
            return tried[-1]
    return min(tried, key=lambda sized: sized.candidate.peak_gib)


def pace(recipe: Recipe, candidate: Candidate, constants: GPTConstants, corpus_tokens: float | None) -> Pace:
    """Return the run's pace: validation is spread over the steps between two of them."""
    layout, step = candidate.layout, candidate.timed.seconds
    stage = recipe.pretrain
    tokens = held_out_tokens(recipe, float(stage.validation_tokens), corpus_tokens)
    validation = constants.validation_share * candidate.timed.validation * step * tokens / layout.batch_tokens
    between = steps_between(stage.validate_every, step)
    startup = constants.startup_seconds
    if layout.device == "cpu":
        startup = constants.cpu_startup_seconds + layout.compile * constants.cpu_compile_seconds
    return Pace(startup, step + validation / between)


def pick_depth(recipe: Recipe, rig: Rig, vocab: int, constants: GPTConstants, corpus: float | None) -> tuple[int, str]:
    """(depth, the reason): the deepest of DEPTHS that fits and reaches its derived tokens within the budget."""
    hours, why = budget_hours(recipe.budget, rig)
    counted = recipe.budget.tokens or recipe.budget.steps or (recipe.budget.epochs and corpus)
    if hours is None and not counted:
        hours = UNBUDGETED_HOURS["cuda" if rig.gpu else "cpu"]
        why = f"{hours:g} h, as the budget sets no limit that counts on {rig.name}"
    best, blocked = None, ""
    for depth in DEPTHS:
        sized = size_up(at_depth(recipe, depth), rig, vocab, constants)
        blocked = _blocked(recipe, sized, constants, corpus, hours, why)
        if blocked:
            # Both memory and hours only grow from here.
            break
        best = depth
    if best is None:
        return DEPTHS[0], f"depth {DEPTHS[0]}, the least that auto tries, although it {blocked}"
    if not blocked:
        return (
            best,
            f"depth {best}, the most that auto tries: it fits {rig.name} and reaches its tokens within {why or 'the budget'}",
        )
    return (
        best,
        f"depth {best}: the deepest that fits {rig.name} and reaches its tokens in the budget; depth {best + 2} {blocked}",
    )


def deepest_that_fits(recipe: Recipe, rig: Rig, vocab: int, constants: GPTConstants) -> int | None:
    """Find the deepest of DEPTHS that fits the rig's memory, whatever it costs, and beyond them; None where none does.

    What the recipe itself asks for bounds the search, where that is deeper.
    """
    asked = 0 if recipe.gpt.depth == "auto" else recipe.gpt.depth
    depths = range(DEPTHS[0], max(DEPTHS[-1], asked) + 1, DEPTHS[1] - DEPTHS[0])
    low, high = 0, len(depths)
    while low < high:
        middle = (low + high) // 2
        if size_up(at_depth(recipe, depths[middle]), rig, vocab, constants).candidate.fits:
            low = middle + 1
        else:
            high = middle
    return depths[low - 1] if low else None


def _blocked(recipe: Recipe, sized: Sized, constants: GPTConstants, corpus: float | None, hours: float | None, why: str) -> str:
    """Why this depth is too much, or ''."""
    candidate, tokens = sized.candidate, sized.hyper.tokens.value
    if not candidate.fits:
        return f"needs {candidate.peak_gib:.1f} of {candidate.limit_gib:.1f} GiB"
    batch = candidate.layout.batch_tokens
    if hours is not None:
        needed = pace(recipe, candidate, constants, corpus).hours(round_steps(tokens, batch))
        if needed > hours:
            return f"would need {needed:.3g} h for its {tokens:,.0f} tokens ({why}: {hours:.3g} h)"
    allowed, which = budget_tokens(recipe.budget, batch, corpus)
    if allowed is not None and tokens > allowed:
        return f"wants {tokens:,.0f} tokens ({which} allows {allowed:,.0f})"
    return ""


def _memory_reason(sized: Sized, given: int | None) -> str:
    shape, candidate = sized.shape, sized.candidate
    again = f", {_applications(sized)}" if sized.passes.repeat else ""
    count = f"{shape.parameters / 1e9:.1f} B" if shape.parameters >= 1e9 else f"{shape.parameters / 1e6:.0f} M"
    size = f"depth {sized.depth} has {count} parameters, {4 * shape.parameters / 1e9:.1f} GB of fp32 weights alone{again}"
    at = f"at the recipe's micro-batch {given}" if given else f"even at micro-batch {candidate.layout.micro_batch}"
    needs = f"each rank needs {candidate.peak_gib:.1f} GiB ({parts_text(candidate.memory.components)}) {at}"
    return f"{size}; {needs}; the limit is {candidate.limit_gib:.1f} GiB{_shared(sized)}"


def _shared(sized: Sized) -> str:
    """Say what each of several ranks holds of weights, gradients and states."""
    layout = sized.candidate.layout
    if layout.ranks == 1:
        return ""
    if layout.shard == "full":
        return f"; weights, gradients and optimizer states are shared over {layout.ranks} ranks already"
    return f"; each of {layout.ranks} ranks holds all weights and gradients"


def _model(sized: Sized) -> str:
    name = f"GPT of depth {sized.depth}"
    return f"recursive {name} ({_applications(sized)})" if sized.passes.repeat else name


def _applications(sized: Sized) -> str:
    """'12 blocks x 3 passes x 4 supervision steps = 144 applications'."""
    recursion = sized.shape.recursion
    assert recursion is not None
    counts = f"{sized.shape.layers} blocks x {recursion.passes} passes x {recursion.supervision} supervision steps"
    return f"{counts} = {sized.shape.applications:,} applications"


def _length_notes(recipe: Recipe, sized: Sized, length: Length, corpus: float | None, auto: bool) -> list[str]:
    notes = []
    if recipe.budget.epochs is not None and not corpus:
        notes.append("budget.epochs is applied once the corpus has been read")
    ratio = length.tokens / sized.hyper.tokens.value
    # A depth that auto chose needs no advice on depth.
    if ratio < 0.9:
        advice = "" if auto else "; a smaller one may do better"
        share = f"{ratio:.0%}" if ratio >= 0.01 else "less than 1%"
        notes.append(f"{length.ended_by} ends the run at {share} of the tokens this depth is best trained with{advice}")
    elif ratio > 1.5:
        advice = "" if auto else "; a deeper one may do better"
        notes.append(f"the budget reaches {ratio:.1f} times the tokens this depth is best trained with{advice}")
    return notes


def _what_data_feed(
    recipe: Recipe, rig: Rig, vocab: int, c: GPTConstants, corpus: float | None, sized: Sized, speed: Pace, length: Length
) -> list[str]:
    """Say what to do with data that this run repeats too often: the depth they feed, what 4 epochs cost, what the depth wants."""
    if not corpus:
        return []
    enough = EPOCHS_WARN * corpus
    wanted = sized.hyper.tokens.value
    depth = deepest_fed(recipe, vocab, enough)
    hours = speed.hours(round_steps(enough, sized.candidate.layout.batch_tokens))
    cost = "" if rig.dollars_per_hour is None else f", ${hours * rig.dollars_per_hour:,.2f}"
    of_this = f"{EPOCHS_WARN:.0f} epochs are {count_text(enough)} tokens: at depth {sized.depth} {hours_text(hours)}{cost}"
    feeds = f"the deepest model they feed is depth {depth}" if depth else f"not even depth {DEPTHS[0]} is fed by them"
    if depth == sized.depth:
        feeds = "as much as this depth is best trained with: the rest of the budget is better kept, or spent on more data"
        return [f"{of_this}; {feeds} (--set budget.epochs={EPOCHS_WARN:.0f})"]
    wants = f"depth {sized.depth} is best trained with {count_text(wanted)}, {wanted / corpus:.1f} epochs of these data"
    choose = f" (--set model.depth={depth} --set budget.epochs={EPOCHS_WARN:.0f})" if depth else ""
    return [f"{of_this}; {wants}; {feeds}{choose}"]


def deepest_fed(recipe: Recipe, vocab: int, tokens: float) -> int | None:
    """Find the deepest of DEPTHS whose best length is within so many tokens; None where none is."""
    fed = [depth for depth in DEPTHS if derive(at_depth(recipe, depth), vocab).tokens.value <= tokens]
    return fed[-1] if fed else None


def _memory_error(constants: GPTConstants, candidate: Candidate) -> float:
    """State the relative error of a rank's memory: larger where less was measured, unless the user has measured it."""
    if is_sharded(candidate.layout) and constants.extra_gib == 0:
        return max(constants.memory_error, UNSEEN_MEMORY_ERROR)
    if not candidate.layout.recorded or constants.extra_gib != 0:
        return constants.memory_error
    return max(constants.memory_error, constants.recorded_memory_error)


def _time_error(constants: GPTConstants, sized: Sized) -> float:
    """State the relative error of a step's seconds: larger where less was measured, unless the user has measured it."""
    candidate, errors = sized.candidate, [constants.time_error]
    if candidate.layout.device != "cuda" or constants.time_factor != 1.0:
        return constants.time_error
    if candidate.timed.bound == LAUNCHES:
        errors.append(constants.launch_error)
    elif candidate.layout.recorded:
        errors.append(constants.recorded_error)
    if is_sharded(candidate.layout):
        errors.append(constants.sharded_error)
    if candidate.layout.precision == "fp8" and sized.passes.repeat:
        errors.append(constants.fp8_error)
    return max(errors)


def _sources(rig: Rig, sized: Sized, corpus: str) -> dict[str, str]:
    """Say where the numbers come from that only GPTs' plans have, or have from elsewhere."""
    peak = (
        f"{rig.gpu.name}: {rig.gpu.source}" if rig.gpu else "measured fp32 products" if rig.cpu_gflops else "assumed speed a core"
    )
    return {
        "mfu": f"training FLOPs (PaLM, appendix B) against the dense peak; {peak}",
        "hours": "starting up, steps, validations, last checkpoint",
        "epochs": f"tokens / corpus ({corpus})",
        "checkpoint_gib": "fp32 weights and optimizer states",
        "disk_gib": "newest checkpoint whole, the one being written, kept weights, tokens",
        **{f"components.{name}": source for name, source in SOURCES.items()},
        **{f"hyper.{name}": rule for name, _, rule in sized.hyper.rows()},
    }
