"""Numbers that tune are few: each is known by its kind, and those of no other kind are counted."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CODE = (ROOT / "einc", ROOT / "runtime" / "einc_runtime")

MAX_TUNING = 300
"""Numbers with which einc is faster or slower, or chooses other plans. A number of no kind below is one of them."""

KINDS = {
    "fixed by a format, a library, a processor or mathematics": """
        ALGORITHM_BYTES ALIGNMENT ANY_NUMBER APART BIAS BLOCK_ELEMENTS BUG BYTES_PER_MS CANNOT_WRITE CLIP_EPS
        COMPLETION_TOKENS CONNECTED CONNECTING CONTROL CUBIC DIFFERENT EPS EXACT F32_BIAS FIRST_SCALE GIGABYTE
        GONE GREEDY_TOP_K GROUP_UNIT GROWTH_STEPS HIDDEN INTERRUPTED INVOCATION LAST_RUN LESS_SHARED LEVELS
        LIMIT LINE LINE_BYTES LOADED LOWEST_POSITION MAX_GROUP_MESSAGES MAX_HEAD_WIDTH MAX_PITCH MAX_TYPES
        MAX_VIEW_ELEMENTS MAX_WINDOW MAX_WINDOW_DIMS MIN_COPY_ROW_BYTES MIN_STEP MIN_TILE_ROWS MISSING
        MISSING_MS MS_PER_US NAIVE NARROW_BLOCK NIBBLES NO_DEVICE NO_LANE NS_PER_MS OBJECT_ENTRY_SIZE
        OF_SCRATCHPAD OF_WEIGHTS OLDEST OUT_OF_MEMORY POINTER POINTER_ALIGNMENT POISON_BYTE PRODUCT_FIELDS
        PR_SET_PDEATHSIG RANDOM_BITS REPORT_VERSION ROUNDS RUN SCHEMA_MAJOR SCHEMA_VERSION SCRATCH SCRATCHPAD
        SOURCE SPARE STAND_IN_TENSOR STAND_IN_WEIGHT START STATIC_SHARED STEP STRIDE SUCCESS
        SUPER_BLOCK_ELEMENTS SYNTHESIZED TARGET TASKS_PER_PLAN THETA UNITS_PER_MS UNSEEN USAGE WEIGHTS
        WORD_BYTES WORKERS WORKSPACE_ALIGNMENT _ALLOCATION_FAILED _ALREADY_ENABLED _ANY_LAYOUT _ARENA_DISTANCE
        _BUFFER_ALIGNMENT _BUS_BITS _CACHE _CACHE_BYTES _CACHE_LINE_INTEGERS _CHUNK_UNIT _CLOCK_KHZ
        _CONTROL_TOKEN _CPU _CUBE_FACTOR _CUDNN _DEFAULT_ALGORITHM _DIGEST_BYTES _DIRECT _DIVIDED_RANK _DONTNEED
        _EPSILON _F16_BIAS _F16_EXPONENT_AND_FRACTION _F32_FRACTION_BITS _FAR _FIRST _FLAG _HIGHEST
        _HIP_CACHE_BYTES _HIP_MAX_WORKSPACE _HIP_MULTIPROCESSORS _IMPLEMENTATION _INDEX_BITS _INFERENCE
        _INVERSE_ERROR_SHAPE _IN_COMPUTE_TYPE _IN_ORDER _LARGEST_MEMORY _LEAST_COMPUTE_CAPABILITY
        _LEAST_TEMPERATURE _LIST _MAJOR _MAX_DYNAMIC_SHARED _MAX_EXPONENT _MAX_NVLINKS _MAX_WORKSPACE
        _MEMORY_BY_HANDLES _MEMORY_KHZ _MINOR _MIN_ALLOCATION _MIN_EXPONENT _MOVE_FIELDS _MULTICAST
        _MULTIPROCESSOR_COUNT _NAME _NAME_LENGTH _NATIVE_ATOMICS _NCCL_UINT8 _NEWEST_VERSION _NORMAL
        _NOTHING_LEFT _NOT_A_NUMBER _NOT_READY _NO_BOUND _NO_REDUCED_PRECISION _OF_SOURCE _OF_TARGET
        _OLDEST_VERSION _ONNX_MARK _ON_DEVICE _OPERATION _OUTER_VECTOR _PACK_ALIGNMENT _PAGE_ENTRY _PICKLE_MARK
        _PINNED _PORTABLE _PRIME _READ_WRITE _RECOMMENDED _REDUCTIONS _RELU _ROUNDER _ROUNDER_F64 _SECOND
        _SECOND_OPERAND _STAND_IN_DISTANCE _STRIDED _SWITCH _TEXT _TUNING_VERSION _UNBOUNDED _UNDEFINED_TYPE
        _UNIT _UNUSED _USER_DEFINED _USER_SCRATCHPAD _WITH_BIAS _WORD""",
    "the default of an option": """
        BUILT_TOKENS DEFAULT_CHUNK DEFAULT_EXTENT DEFAULT_SESSIONS ENCODED_TOKENS IMAGE_SIZE PIECE_TOKENS
        PROPOSALS QUICK_SECONDS SECONDS SPREAD _EXTENT_OF_A_PARAM _PROMPT""",
    "how far floats may differ": """
        BOUND_ROUNDING COVERED DIGITS DOUBLE_TOLERANCE PRECISION ROUNDING ROUNDINGS SAME_INSTANT
        SINGLE_TOLERANCE SUM_ROUNDING TRIED_TOLERANCE _BOUND_DIGITS _ERROR_OF_SLOPES _ERROR_OF_TABLES _GRID
        _LEAST _MAX_PROBE_ERROR _PERTURBATION _RELATIVE_ERROR _SCALE _SOLVER_TOLERANCE _TIE _TIGHT _VIOLATED""",
    "measured on processors and machines, or published of them": """
        BYTES_PER_NS CACHE_POWER CACHE_SPEED CONVOLVED_PER_NS FLOPS_PER_NS GATHER_NS LIBRARY_BYTES MESSAGE_MS
        MESSAGE_NS MOVED_PER_NS MOVING_ERROR MULTIPROCESSORS NUMPY_CALLS_SAVED OF_RUNS OF_WORKERS
        PANEL_PRODUCTS_PER_NS PRODUCTS_PER_NS REACHED_LINK_PART REACHED_PEAK RECURRENCE_ERROR RESERVED
        SOCKET_GBS SOFTMAX_NORM SPECIAL_OPERATIONS START_NS USUAL_DEVIATION USUAL_GAIN WEIGHT_FLOPS _KERNEL_US
        _LEAST_SHARE_OF_MEMORY _SLEEPING_GBS _SLOWER _STAGED_US _TRANSFER_US _UNDIVIDED""",
    "how much of something a text or a picture shows": """
        BEND BOTTOM_EDGE CLOSE DRAWN_DIGITS LEFT_EDGE LISTED_TOKENS MAX_ANSWERS MAX_CONTENDERS
        MAX_CURVE_POINTS MAX_CUTS MAX_DIFFERENCE_ROWS MAX_DRAWN_CHANGES MAX_FRAMED_TASKS MAX_GRID_COLUMNS
        MAX_GRID_ROWS MAX_INPUTS MAX_LABEL MAX_LINE MAX_LINE_WIDTH MAX_LISTED MAX_LISTED_ITEMS
        MAX_LISTED_RESOURCES MAX_MISSING MAX_NAMED_CHOICES MAX_NAMES MAX_NAMES_LENGTH MAX_NAME_LENGTH MAX_NOTE
        MAX_PLAIN_TEXT MAX_POINTS MAX_PROCESSOR_NAME MAX_PROGRAM_LINES MAX_REASON MAX_SECTIONS MAX_SHOWN
        MAX_SHOWN_PROGRAM MAX_SHOWN_SHAPES MAX_SITES_IN_CELL MAX_TABLE_ROWS MAX_TENSOR_LINES
        MAX_TICKS MAX_TITLE MIN_SHARED NAMED_PART PLOT_HEIGHT PLOT_WIDTH REASON_WIDTH RIGHT_EDGE SAME_TIME SWEEPS
        TOP_EDGE _BUS_ROW _MAX_DRAWN_SITES _MAX_NAMED _MAX_NUMBERED_SITES _MAX_PICTURE_WIDTH _MAX_STATED
        _MAX_WORDS _SHOWN""",
    "how long something is waited for": """
        BEAT BRIEF_NAP COMMAND_POLL_SECONDS CONNECT_POLL_SECONDS CONNECT_SECONDS END_SECONDS FIRST_NAP GRACE
        KEEP_ALIVE LAST_NAP LAST_RESORT LAST_SECONDS LAST_WORDS MAX_DELAY MAX_LOOKS MAX_WRITE_SECONDS PAUSE
        POLL_SECONDS REPORT_SECONDS RESEND_DELAY SILENCE SLOW_LINK TOOL_SECONDS WATCH_SECONDS _DELAY _LINE_EVERY""",
    "how much is kept, or handled at a time, in memory or on disk": """
        BATCH CHUNK_ELEMENTS CHUNK_POSITIONS FINGERPRINT_BLOCKS FINGERPRINT_BYTES IMAGES_AT_ONCE KEPT MAX_BODIES
        MAX_CACHED_PLANS MAX_COMPARISONS_AT_ONCE MAX_EXCHANGES_AT_ONCE MAX_FILES MAX_FORMS MAX_HELD
        MAX_HELD_BYTES MAX_KEPT_ATOMS MAX_KEPT_BEGINNINGS MAX_KEPT_FIGURES MAX_KEPT_MODELS MAX_KEPT_OFFERS
        MAX_KEPT_PLACERS MAX_MESSAGE MAX_OVERLAPS_AT_ONCE MAX_PACKED_SHARE MAX_PARKED MAX_PREPARED
        MAX_PRIMITIVES MAX_REMEMBERED_PROOFS MAX_REMEMBERED_TIMES MAX_REPEATED MAX_TABLE_ENTRIES
        MAX_TOTAL_ENTRIES PIECE READ_BYTES ROWS_AT_ONCE SETS_AT_ONCE TERMS_AT_ONCE WIDENED_ELEMENTS _CHUNK
        _FIRST_BYTES _LARGEST_BYTES _WIDENED_AT_ONCE""",
    "a limit of what comes from outside": """
        EQUATION_TERMS FULL_NAME_CHARACTERS INTEGER_BOUND LIST_ITEMS MAX_ADDRESS_SPACE MAX_BOUNDS
        MAX_BUILD_MEMORY MAX_BUILD_SECONDS MAX_BUILD_WAIT MAX_BUILT MAX_BUILT_TOKENS MAX_CELLS MAX_CHARGE
        MAX_CHOICES MAX_CODE_BYTES MAX_CONNECTIONS MAX_CONTEXT MAX_CORNERS MAX_COVER_STEPS MAX_DIGITS
        MAX_DIMENSIONS MAX_DRAWN MAX_DRAWN_TEXT MAX_EFFORT MAX_EXTENT MAX_FIGURES_BYTES MAX_GGUF_TENSORS
        MAX_GPUS MAX_GROUP_SIZE MAX_INTEGER MAX_KERNELS MAX_KEYS MAX_KNOTS MAX_LAYERS MAX_LINKS MAX_MEMORIES
        MAX_MEMORY MAX_NAME_CHARACTERS MAX_OPERATIONS MAX_OVERLAP_STEPS MAX_PART_STEPS MAX_POSITIONS
        MAX_PROOF_STEPS MAX_READ_BYTES MAX_RESOURCES MAX_RULES MAX_SECONDS MAX_SEQUENCES MAX_STACKED_EXPERTS
        MAX_STEP_VECTORS MAX_STOP MAX_STOPS MAX_TABLE MAX_TEMPERATURE MAX_TENSORS MAX_TRAINING_STEPS
        MAX_UNROLLED_STEPS MAX_US MAX_WAIT MAX_WEIGHTS MAX_WORK NAME_CHARACTERS NESTING NODES RANK
        STATEMENT_TOKENS STRING_CHARACTERS TEXT_CHARACTERS USED_FILES _COMPARED _MAX_CARDS _MAX_COMPARED
        _MAX_MBIT _MAX_OUTPUT _MAX_PAUSE""",
}
"""Names of numbers by what another value would change. A `MAX_...` above which something is raised is a limit, too."""
REFUSES = re.compile("check|error|expect|fail|fault|limit|parse|read|refuse|reject|require|take", re.IGNORECASE)
"""Names of functions that are given limits."""


def list_numbers(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Names of a module in upper case that are bound to numbers, alone or several at a time, with these."""
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            targets, value = statement.targets[0], statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets, value = statement.target, statement.value
        else:
            continue
        if isinstance(targets, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = list(zip(targets.elts, value.elts, strict=True))
        else:
            pairs = [(targets, value)]
        for target, bound in pairs:
            if isinstance(target, ast.Name) and target.id.isupper() and is_number(bound):
                yield target.id, ast.unparse(bound)


def is_number(value: ast.expr) -> bool:
    """Whether it is a number as it stands, or arithmetic with such numbers."""
    return all(
        isinstance(node, ast.BinOp | ast.UnaryOp | ast.operator | ast.unaryop)
        or (isinstance(node, ast.Constant) and type(node.value) in (int, float))
        for node in ast.walk(value)
    )


def list_limits(tree: ast.Module) -> Iterator[str]:
    """Names that a condition has behind which something is raised, and that an error or a check is given."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If):
            if any(isinstance(part, ast.Raise) for line in node.body for part in ast.walk(line)):
                yield from list_names(node.test)
        elif isinstance(node, ast.Raise) or (isinstance(node, ast.Call) and REFUSES.search(ast.unparse(node.func))):
            yield from list_names(node)


def list_names(tree: ast.AST) -> Iterator[str]:
    """Names `MAX_...`, of this module or of another one."""
    names = (getattr(node, "id", getattr(node, "attr", "")) for node in ast.walk(tree))
    return (name for name in names if name.lstrip("_").startswith("MAX_"))


@pytest.fixture(scope="module")
def trees() -> list[ast.Module]:
    return [ast.parse(path.read_text(encoding="utf-8")) for folder in CODE for path in sorted(folder.rglob("*.py"))]


def test_few_numbers_tune(trees: list[ast.Module]) -> None:
    numbers = {name for tree in trees for name, _ in list_numbers(tree)}
    kinds = [name for names in KINDS.values() for name in names.split()]
    assert len(kinds) == len(set(kinds))
    assert set(kinds) - numbers == set()
    tuning = numbers - set(kinds) - {name for tree in trees for name in list_limits(tree)}
    assert len(tuning) <= MAX_TUNING, sorted(tuning)


def test_a_name_has_one_number(trees: list[ast.Module]) -> None:
    """Also where several names are bound at a time."""
    values: defaultdict[str, set[str]] = defaultdict(set)
    for name, value in (pair for tree in trees for pair in list_numbers(tree)):
        values[name.lstrip("_")].add(value)
    assert {name: numbers for name, numbers in values.items() if len(numbers) > 1} == {}
