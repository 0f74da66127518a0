"""Rigs as people write them: 'RTX 3090', '8x H100 SXM', 'H100:8', '2x8xH100', '2 nodes of 8 H100', '8xH100 at $2.50/GPU/h'."""

from __future__ import annotations

import re
from collections.abc import Callable

# Words that name no particular GPU, and stand before or behind those that do.
_VENDOR = re.compile(r"\b(?:nvidia|geforce|tesla|gpus?|(?:graphics )?cards?)\b", re.I)
_WORDS = {
    "single": 1, "one": 1, "two": 2, "dual": 2, "three": 3, "four": 4, "quad": 4, "six": 6, "eight": 8, "ten": 10, "sixteen": 16,
}  # fmt: skip
_WORD = re.compile(rf"^(?:a\s+)?({'|'.join(_WORDS)})\s+(?:x\s+)?(?=(nodes?\b)|\S)", re.I)
_NOISE_WORDS = r"v?ram|memory|each|per|nvlink|nvswitch|infiniband|ib|tensor cores?"
# In brackets behind a GPU: how much memory it has, its form, and what goes without saying.
_ASIDE = re.compile(rf"\s*[(\uff08]\s*((?:(?:\d+\s*gi?b?|sxm\d?|pcie|{_NOISE_WORDS})\b[\s,/+]*)+)[)\uff09]", re.I)
_NOISE = re.compile(rf"(?:[\s,+]|\bwith\b|\bw/)+(?:{_NOISE_WORDS})\b", re.I)
_MEMORY_WITHIN = re.compile(r"(\d{2,3})\s*g(?:i?b)?[\s,-]+((?:sxm|pcie|nvl)\w*)$", re.I)
_MANY = re.compile(r"(?<=\d{3})s\b")  # H100s, 4090s; an L40S is another GPU than an L40
_DGX = re.compile(r"^(?:(\d+)\s*[x×*]?\s*)?dgx[\s-]*([ahb][12]00)(?:\s+(?:node|server|machine)s?)?$", re.I)
_ONE_NODE = re.compile(r"^((?!1\s*[x×*])\d+\s*[x×*-].*|.*\s[x×*:]\s*\d+)\s+(?:node|server|machine|instance)$", re.I)
_TWICE_NODES = re.compile(r"^(\d+\s*[x×*]\s*\d+\s*[x×*-].*)\s+(?:node|server|machine)s$", re.I)
# Only before or behind a number: 'a node with H100s' does not say how many.
_NODE_WITH = re.compile(
    rf"^(?:(?:an?|one)\s+)?(?:node|server|machine|box)\s+(?:with|of)\s+(?=\d{{1,2}}(?!\d)|(?:{'|'.join(_WORDS)})\b|.*[x×*:]\s*\d{{1,2}}$)",
    re.I,
)
_LATER = re.compile(
    r"^(?P<name>(?:rtx[\s_-]*\d|[A-Za-z]|[3-5]090(?!\d))[^:x×*]*?(?:(?:sxm|\.\d*xlarge)[^:x×*]*?)?)\s*(?::|\s[x×*]\s*|[x×*])\s*(?P<count>\d{1,3})$",
    re.I,
)
_ALL = re.compile(
    r"^(?P<all>\d+)\s*[x×*]?\s*(?P<name>[A-Za-z][^()]*?)\s*(?:[,(]|\bon\b|\bover\b|\bacross\b)\s*(?P<nodes>[2-9]|[1-9]\d+)\s*nodes\)?$",
    re.I,
)
_NODES = re.compile(r"^(?P<nodes>\d+)\s*nodes?\s*(?:of|with|[x×*,])?\s*(?P<rest>.+?)(?:\s+each)?$", re.I)
_TWICE = re.compile(r"^(?P<nodes>\d+)\s*[x×*]\s*(?P<count>\d+)\s*[x×*-]?\s*(?P<name>[A-Za-z].*)$")
_BARE = re.compile(r"^(?P<count>\d{1,3})\s+(?P<name>(?![xX]\s)(?:[A-Za-z]|[345]090\b).*)$")
_PRICE = re.compile(
    r"^(?P<body>.+?)\s*(?:\bat\b|\bfor\b|[,(=:])?\s*"
    r"(?P<price>\$\s*\d[\d.,]*\s*(?:/|per\b|an?\b).*|\d[\d.,]*\s*\$\s*/.*|\d[\d.,]*\s*(?:usd|dollars?)\b.*)$",
    re.I,
)
_FIRST = re.compile(
    r"^(?P<price>[~\u2248]?\$\s*[\d.][\d.,]*\s*(?:/|per\s+)(?:gpu[\s/-]*)?(?:hour|hr|h))\s+(?:(?:on|for|an?)\s+)?(?P<body>.+)$",
    re.I,
)
# A board of 4 or 8 GPUs without a server around it, by which sellers name nodes.
_HGX = re.compile(
    r"^(?:(?P<boards>\d+)\s*[x×*]?\s*)?(?:hgx[\s-]+(?P<name>[ahb][12]00)(?P<memory>\s+\d+\s*gb)?|(?P<before>[ahb][12]00)[\s-]+hgx)"
    r"(?:[\s,]+(?P<count>[48])(?:[\s-]*x)?[\s-]*)?(?:\s+(?:node|server|machine|board)s?)?$",
    re.I,
)
_NVL72 = re.compile(r"^(gb[23]00)[\s-]+nvl[\s-]?72(?:\s+rack)?$", re.I)
# As in a batch script: --gres=gpu:h100:8, --gpus-per-node=8.
_SLURM = re.compile(r"^(?:--)?(?:gres=|gpus(?:-per-node)?=)?(?:gpu:)?(?=[a-z]\w*:\d+$)", re.I)
_RENTED = re.compile(r"^(?:(?:(?:aws|amazon|ec2|gcp|google(?: cloud)?|azure)\s+)+(?=\S*\d+\S*[._-]\S+$)|ml\.(?=[a-z]+\d))", re.I)
_REMARK = re.compile(
    r"^(?:(?:aws|amazon|ec2|gcp|google(?: cloud)?|azure)\s+)*(?P<count>\d+\s*[x×]\s*)?(?P<machine>[A-Za-z][\w.-]*\w)"
    r"\s*(?:[:,(]|\s-\s)\s*(?P<told>(?:\d+\s*[x×*]?\s*)?[A-Za-z](?=[^()@]*\d)[^()@]*)\)?$",
    re.I,
)
_LAST_NODES = re.compile(r"^(?P<rest>.+?)\s*[x×*]\s*(?P<nodes>\d+)\s*nodes?$", re.I)
_BEHIND = re.compile(r"^(?P<name>[A-Za-z][\w-]*?)(?:\s*[,(]\s*[x×]?\s*|-(?=[1-9]$))(?P<count>\d{1,3})\s*[x×]?\s*\)?$")
_GLUED = re.compile(r"^(?P<count>\d{1,2})(?:-(?:way\s+|\s*)?|\s+way\s+|(?=[a-wyz]))(?P<name>[a-wyz]{1,2}\d{2,3}\w*.*)$", re.I)
_MARKET = re.compile(r"[\s,(]*\b(?P<kind>spot|on[ -]demand)\b[\s,)]*(?:instances?|prices?)?", re.I)
_HERE = re.compile(r"^(?:this|my|my own) (?:machine|computer|host|node)$|^local(?:host)?$", re.I)
_NOTEBOOKS = {"colab": "T4, L4 or A100-40", "kaggle": "2xT4"}
_NOTEBOOK = re.compile(
    r"[\s,(]*\b(?:(?:free|my)\s+)?(?:google\s+)?(?:colab(?:oratory)?|kaggle)\b(?:\s+(?:free|pro\b\+?|notebook))*[\s,):-]*", re.I
)
_MINE = re.compile(r"^(?:(?:my|local|home|own|an?|cluster of)\s+)+(?=(?:rtx\s+)?\S*\d)", re.I)
_SMALL_G = {"24": 2, "48": 4, "96": 8}  # vCPUs of Google's machines with L4 -> GPUs; others have one
# Names of machines that clouds rent, as they are written -> how many of which GPU each has. Google and Azure: their pages on
# accelerator-optimized machines and on ND and NC sizes; AWS: G6, G6e and P6; Lambda names its own by what is in them.
_MACHINES: tuple[tuple[str, Callable[[re.Match[str]], tuple[int | str, str]]], ...] = (
    (r"a2-highgpu-(\d+)g", lambda m: (m[1], "A100-40")),
    (r"a2-ultragpu-(\d+)g", lambda m: (m[1], "A100-80")),
    (r"a3-(?:high|mega|edge)gpu-(\d+)g", lambda m: (m[1], "H100")),
    (r"a3-ultragpu-(\d+)g", lambda m: (m[1], "H200")),
    (r"a4-highgpu-(\d+)g", lambda m: (m[1], "B200")),
    (r"g2-standard-(4|8|12|16|24|32|48|96)", lambda m: (_SMALL_G.get(m[1], 1), "L4")),
    (r"(?:standard_)?nd96i?asr(?:_a100)?_v4", lambda m: (8, "A100-40")),
    (r"(?:standard_)?nd96i?amsr(?:_a100)?_v4", lambda m: (8, "A100-80")),
    (r"(?:standard_)?nd(?:96isr)?[_ ](h[12]00)[_ ]v5", lambda m: (8, m[1].upper())),
    (r"(?:standard_)?nc(24|48|96)ads_a100_v4", lambda m: (int(m[1]) // 24, "A100-80")),
    (r"(?:standard_)?nc(40|80)adi?s_h100_v5", lambda m: (int(m[1]) // 40, "H100-NVL")),
    (r"g4dn\.((?:2|4|8|12|16)?xlarge|metal)", lambda m: ({"12xlarge": 4, "metal": 8}.get(m[1], 1), "T4")),
    (r"g5\.(2|4|8|16|24)xlarge", lambda m: (4 if m[1] == "24" else 1, "A10G")),
    (r"p5\.4xlarge", lambda m: (1, "H100")),
    (r"g6(e?)\.((?:2|4|8|12|16|24|48)?)xlarge", lambda m: ({"12": 4, "24": 4, "48": 8}.get(m[2], 1), "L40S" if m[1] else "L4")),
    (r"p6-b200\.48xlarge", lambda m: (8, "B200")),
    (r"gpu_(\d+)x_([a-z]+\d+)(?:_(?:sxm\d?|80gb_sxm4|(pcie)))?", lambda m: (m[1], m[2].upper() + ("-PCIe" if m[3] else ""))),
)
# Said by name: 'did you mean H100?' would be no answer to an MI300X.
UNSUPPORTED = (
    (r"mi\d{3}x?|instinct|radeon|rocm", "AMD's GPUs are not supported: kernels and plans here are for NVIDIA's (CUDA)"),
    (
        r"tpu\w*|v\d+(?:[ep]|litepod)-?\d*|trillium|ironwood",
        "Google's TPUs are not supported: training here is PyTorch on NVIDIA's GPUs",
    ),
    (
        r"trn\d|trainium|inf\d|inferentia",
        "AWS's Trainium and Inferentia are not supported: training here is PyTorch on NVIDIA GPUs",
    ),
    (r"gaudi\d?|max1\d00|ponte|intel.*|arc", "Intel's accelerators are not supported: training here is PyTorch on NVIDIA's GPUs"),
    (r"m[1-5](?:pro|max|ultra)?|apple.*|mps", "Apple's GPUs are not supported; a Mac trains on its CPU (cpu)"),
)
"""What whole names look like that no plan is made for -> why."""
MARKETS = ("spot", "on-demand")
HGX_GPUS = 8
"""Of a board that does not say how many; there are some of 4."""
NODE_GPUS = 8
ARCHITECTURES = {
    "hopper": "H100, H200 or GH200", "blackwell": "B200, GB200 or RTX5090", "ampere": "A100-80, A100-40, A10G or RTX3090",
    "ada": "L40S, L4 or RTX4090", "adalovelace": "L40S, L4 or RTX4090", "turing": "T4",
}  # fmt: skip
PROVIDERS = r"aws|amazon|gcp|google|azure|lambda(?: labs)?|runpod|modal|coreweave|vast(?:\.ai)?|together|crusoe|nebius|oracle"
UNLISTED = frozenset({
    "a2", "l2", "a100", "a4000", "rtxa4000", "rtx6000", "quadrortx8000", "p100", "v100", "a10", "a16", "a30", "a40", "a6000",
    "rtxa6000", "a5000", "rtxa5000", "rtx6000ada", "rtxpro6000", "h800", "a800", "h20", "l40", "b300", "gb300", "dgxspark",
    "gb10", "h200nvl", "b100",
})  # fmt: skip
"""GPUs that exist and are not in the catalog: another name that looks alike is no help."""
_OTHERS = re.compile(r"(?:gtx)?(?:9\d0|1[06]\d0)(?:ti|super)?|titan\w*|(?:rtx)?[2-5]0[5-9]0(?:ti|super|d|laptop|mobile)*")

_UNCLEAR = (
    (
        r"^(?:auto|cuda|none|(?:a |my )?(?:mac(?:book)?\b.*|(?:laptop|desktop|pc)\b\D*)|cpu.*|(?:no|\d+) ?x? ?(?:v?cpu|core)s?)$",
        "it names no GPU",
        "here (this machine with its GPUs), or cpu (this machine without)",
    ),
    (r"^(?:\d+\s*[x×*]?\s*)?nvl[\s-]?72$", "an NVL72 is of 72 GPUs, and it does not say which", "18x(4xGB200), or a rig file"),
    (
        r"^(?:a |my )?laptop\b",
        "a laptop's GPU is another than the card of that name",
        "here, on that machine; or describe it in a rig file",
    ),
    (
        rf"^[~\u2248]?\$ *[\d.,]+ *(?:/|per )[a-z/ -]*?(?: (?:on|at) (?:{PROVIDERS}))?$",
        "it gives a price, and names no GPU",
        "write the price behind the rig: 8xH100@$98/h",
    ),
    (
        r"\bmig\b|^half\b|^\d/\d\b|^0?\.\d",
        "parts of a GPU are not planned",
        "name a whole one, or describe the part in a rig file",
    ),
)
"""What words look like that leave out or say too much -> what, and the fix."""


def tidy(text: str) -> tuple[str, str]:
    """Return (rig, price) in the words of the grammar, from what people write; price '' where none is given.

    What is not understood comes back as it is.
    """
    body, price = _apart(text)
    words = " ".join(_VENDOR.sub(" ", _SLURM.sub("", body.strip())).split()) or body.strip()
    # Two levels deep: nodes of nodes are not written.
    return _counted(_spelt(words), 2), price if price in MARKETS else _per(price.strip())


def _apart(text: str) -> tuple[str, str]:
    """'8 H100 at $98/h' -> '8 H100' and '$98/h', '8xH100 spot' -> '8xH100' and 'spot'."""
    # One blank at most between words: the forms here try every way to share them out.
    body, at, price = " ".join(text.split()).partition("@")
    # What stands behind @ is a price in the grammar's own words; only without one are others looked for.
    if not at and (found := _FIRST.match(body) or _PRICE.match(body)):
        return found["body"], found["price"]
    if not at and (market := _MARKET.search(body)):
        return _MARKET.sub(" ", body, count=1), market["kind"].replace(" ", "-")
    return body, price


def _spelt(body: str) -> str:
    """'four 3090' -> '4x3090', 'A100 (80GB)' -> 'A100 80GB', 'H100s' -> 'H100', 'DGX H100' -> '8xH100', 'a2-highgpu-8g' -> ..."""
    if _HERE.match(body):
        return "here"
    given = _NOTEBOOK.sub(" ", body, count=1).strip()
    if given.lower() == "a100" != body.lower():
        return "A100-40"  # of two sizes the one that notebooks mostly give
    # The order matters from here on: memory and plural go before the machine's name is looked up, the number of nodes after it.
    body = _MINE.sub("", given or body)
    body = _RENTED.sub("", _bare(body))
    body = _NODE_WITH.sub("", body)
    body = _NOISE.sub("", _ASIDE.sub(r" \1", body)).strip()
    body = re.sub(r"(?i)\s*,\s*(?=(?:sxm\d?|pcie|nvl)\b)", " ", body)
    body = re.sub(r"(?i)(?<=\d)/(?=\d{2,3}\s*(?:g(?:i?b)?)?$)", " ", body)
    body = _WORD.sub(lambda found: f"{_WORDS[found[1].lower()]}{' ' if found[2] else 'x'}", body)
    body = _MEMORY_WITHIN.sub(r"\2 \1GB", _MANY.sub("", body))
    if (whole := _whole(body)) is not None:
        return whole
    if found := _ONE_NODE.match(body) or _TWICE_NODES.match(body):
        return found[1]
    many = re.match(r"^(\d+)\s*[x×*]\s*(.+)$", body)
    count, name = many.groups() if many else ("", body)
    for pattern, told in _MACHINES:
        if machine := re.fullmatch(pattern, name.strip(" ()"), re.I):
            each = "{}x{}".format(*told(machine))
            return f"{count}x({each})" if count else each
    return body


def _whole(body: str) -> str | None:
    """'DGX H100' -> '8xH100', '2 HGX H100' -> '2x(8xH100)', 'GB200 NVL72' -> '18x(4xGB200)'; None: no such machine."""
    if found := _DGX.match(body):
        return f"{found[1]}x(8x{found[2]})" if found[1] else f"8x{found[2]}"
    if found := _HGX.match(body):
        board = f"{found['count'] or HGX_GPUS}x{found['name'] or found['before']}"
        # '8 HGX H100' is what one board has, or eight boards: `unclear` asks which.
        if found["boards"] in ("4", "8") and found["name"]:
            return body  # boards, or GPUs on one
        if found["before"] and found["boards"]:
            return f"{found['boards']}x{found['before']}"  # of so many GPUs it says what they sit on
        return f"{found['boards']}x({board})" if found["boards"] else board
    if found := _NVL72.match(body):
        return f"18x(4x{found[1]})"
    return None


def _bare(body: str) -> str:
    """'(8xH100)' and '[8xH100]' -> '8xH100'."""
    inner = re.match(r"^[(\[]([^()\[\]]+)[)\]]$", body)
    return inner[1].strip() if inner else body


def _counted(body: str, deeper: int) -> str:
    """'H100:8' and '8 H100' -> '8xH100', '2x8xH100' and '2 nodes of 8xH100' -> '2x(8xH100)'."""
    if (found := _ALL.match(body)) and int(found["all"]) > NODE_GPUS and not int(found["all"]) % int(found["nodes"]):
        return f"{found['nodes']}x({int(found['all']) // int(found['nodes'])}x{_spelt(found['name'])})"
    if found := _LAST_NODES.match(body):
        return f"{found['nodes']}x({_counted(found['rest'].strip(' ()'), deeper - 1) if deeper else found['rest']})"
    if found := _NODES.match(body):
        inner = _counted(_spelt(found["rest"].strip(" ()")), deeper - 1) if deeper else found["rest"]
        return f"{found['nodes']}x({inner})"
    if found := _TWICE.match(body):
        return f"{found['nodes']}x({found['count']}x{found['name']})"
    if found := _LATER.match(body):
        return f"{found['count']}x{found['name'].strip(' ,')}"
    for form in (_BARE, _BEHIND, _GLUED):
        if found := form.match(body):
            return f"{found['count']}x{found['name']}"
    return body


def _per(price: str) -> str:
    """'2.50$/h' -> '$2.50/h'; '$2.50/GPU/h' and '$2.50/h each' -> '$2.50', which is a GPU-hour in the grammar."""
    text = re.sub(r"(?i)\s*(?:usd|dollars?)\b", "", price).strip("~\u2248 )")
    text = re.sub(r"^(\d[\d.]*)\s*\$", r"$\1", re.sub(r"(?<=\d),(?=\d{3}\b)", "", text))
    text = re.sub(r"(?i)\s*(?:/|\b(?:per|an?)\b)\s*", "/", text)
    gpu = re.match(r"(?i)^(\$?\s*[\d.]+)/(?:gpu|card)(?:[-/ ]?(?:h|hr|hour|hours))?$", text)
    if gpu:
        return gpu[1]
    whole = re.match(r"(?i)^(\$?\s*[\d.]+)/(?:h|hr|hour|hours)(?:/(?:gpu|card)|\s+each)?$", text)
    if whole:
        return whole[1] if re.search(r"(?i)gpu|card|each", text) else f"{whole[1]}/h"
    return text


def remark(text: str) -> tuple[str, str, str] | None:
    """Split '2x p5.48xlarge (8x H100) spot' and 'p5.48xlarge: 8x H100' into count, machine and what it has; None of others."""
    found = _REMARK.match(_apart(text)[0].strip())
    return (found["count"] or "", found["machine"], found["told"]) if found else None


def is_machine(name: str) -> bool:
    """Return whether a name is one of the machines that clouds rent."""
    return any(re.fullmatch(pattern, name, re.I) for pattern, _ in _MACHINES)


def plain(name: str) -> str:
    """Return a name without what writers differ in: case, blanks, dashes."""
    return re.sub(r"[\s_-]", "", name.lower()).removeprefix("nvidia")


def without_memory(name: str) -> list[tuple[str, float]]:
    """Return the ways to split a plain name from the GB that it ends in: 'h10080gb' -> ('h100', 80.0), ('h10', 80.0)."""
    # Both, since a100 80gb run together is a10080gb: a100 with 80, or a10 with 080.
    found = [re.match(rf"^(.+?)(\d{{{digits}}})(?:gb|gib|g)(?:hbm\d?e?|gddr\d?x?)?$", name) for digits in (2, 3)]
    return [(match[1], float(match[2])) for match in found if match]


def is_unlisted(name: str) -> bool:
    """Return whether a GPU by that name exists and is not in the catalog, whatever its memory and form."""
    wanted = re.sub(r"(?:sxm|pcie)\d?|blackwell", "", plain(name))
    shorts = (wanted, *(short for short, _ in without_memory(wanted)))
    return any(short in UNLISTED or _OTHERS.fullmatch(short) for short in shorts)


def unclear(text: str, find_gpu: Callable[[str], str | None]) -> tuple[str, str] | None:
    """Return (what a text leaves out or says too much of, fix), where it can be told; None of others."""

    def is_gpu(name: str) -> bool:
        return find_gpu(name) is not None or is_unlisted(name)

    words = " ".join(text.partition("@")[0].split()).lower()
    parts = [re.sub(r"^\d+\s*[x×*]\s*", "", tidy(part)[0]) for part in re.split(r",|\+|&|\band\b", words)]
    if sum(map(is_gpu, parts)) > 1:
        return "a rig is of one kind of GPU", "plan each of them with an --on of its own"
    known = next((told for like, *told in _UNCLEAR if re.search(like, words)), None)
    return (known[0], known[1]) if known else _of_no_kind(words) or _nodes_of(words, is_gpu) or _many_of(text, words)


def _of_no_kind(words: str) -> tuple[str, str] | None:
    if _NOTEBOOK.fullmatch(words):
        name = next(name for name in _NOTEBOOKS if name in words)
        return "it does not say which GPU was given", f"name it: {_NOTEBOOKS[name]}"
    words = re.sub(r"^(?:--)?gpus(?:-per-node)?[= ](\d+)$", r"\1 gpus", words)
    if many := re.fullmatch(r"(?:(\d+)|an?|one|some)?\s*(?:x\s*)?(?:nvidia\s+)?(?:gpus?|(?:graphics )?cards?)", words):
        return (
            "it does not say which GPUs",
            f"name the kind: {of_kind(int(many[1] or 1), 'H100')}, or {of_kind(int(many[1] or 1), 'A100-80')}",
        )
    memory = re.fullmatch(r"(?:(\d+)\s*[x×*]\s*)?(\d{2,3})\s*g(?:i?b)?(?:\s*[:x×*]\s*(\d+))?(?:\s*gpus?)?", words)
    if memory:
        count = int(memory[1] or memory[3] or 1)
        kinds = {"24": ("RTX4090", "L4"), "40": ("A100-40",), "48": ("L40S",), "80": ("H100", "A100-80"), "141": ("H200",)}
        named = " or ".join(of_kind(count, kind) for kind in kinds.get(memory[2], ("H100",)))
        return f"it says how much memory, {memory[2]} GB, and not which GPUs", f"name the kind: {named}"
    return None


def _nodes_of(words: str, is_gpu: Callable[[str], bool]) -> tuple[str, str] | None:
    """Ask how many GPUs a node has: of '2 H100 nodes', 'a node with H100s'."""
    node = r"(?:node|server|machine|box)(?:e?s)?"
    many = r"(?:(?P<count>\d+)\s*x?|an?|one)?\s*"
    found = re.fullmatch(rf"{many}(?P<name>\S.*?)\s+{node}", words)
    found = found or re.fullmatch(rf"{many}{node}\s+(?:with|of)\s+(?:an?\s+)?(?P<name>.+)", words)
    if not found or not is_gpu(name := _MANY.sub("", found["name"])):
        return None
    count, each = int(found["count"] or 1), f"{NODE_GPUS}x{name.upper()}"
    return "it does not say how many GPUs a node has", f"of eight: {f'{count}x({each})' if count > 1 else each}"


def _many_of(text: str, words: str) -> tuple[str, str] | None:
    kind = re.sub(r"^\d+\s*[x×*]?\s*", "", words)
    if plain(kind) in ARCHITECTURES:
        return f"{kind} is what several GPUs are built as", f"name one: {ARCHITECTURES[plain(kind)]}"
    if boards := re.match(r"([48])\s*[x×*]?\s*hgx[\s-]+(\w+)", words):
        count, name = boards[1], boards[2].upper()
        return (
            f"{count} GPUs on one board, or {count} boards of {HGX_GPUS} each",
            f"{count}x{name} for the GPUs, {count}x({HGX_GPUS}x{name}) for the boards",
        )
    who = rf"(?:{PROVIDERS})"
    if rented := re.fullmatch(rf"{who}[:\s]+(?P<a>.+)|(?P<b>.+?)\s*(?:\bon\b|\bat\b|[,(])\s*{who}\)?", text.strip(), re.I):
        rig = rented["a"] or rented["b"]
        priced = rig if "$" in rig or "@" in rig else f"{rig}, with the price there: {rig}@$2.50 (per GPU-hour)"
        return "who rents it out is not part of a rig", priced
    return None


def of_kind(count: int, kind: str) -> str:
    """Return so many GPUs as the grammar writes them, on as few nodes as hold them."""
    nodes = -(-count // NODE_GPUS)
    return f"{nodes}x({-(-count // nodes)}x{kind})" if nodes > 1 else f"{count}x{kind}" if count > 1 else kind


def unsupported(name: str) -> str | None:
    """Say why there is no plan for a kind of accelerator; None of others."""
    wanted, words = plain(name), name.lower()
    return next((why for like, why in UNSUPPORTED if re.fullmatch(like, wanted) or re.match(rf"(?:{like})\b", words)), None)
