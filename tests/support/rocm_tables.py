"""The tables of `rocm-smi --showtopo` for rows of words."""


def rocm(kinds, weights=None, numa=None, series=""):
    """The tables of a tool of 2024 for rows of words."""
    count = len(kinds)
    names = [f"GPU{k}" for k in range(count)]
    lines = ["======================= ROCm System Management Interface ======================="]
    for title, rows in (("Weight", weights), ("Link Type", kinds)):
        if rows is not None:
            lines += [f"=========================== {title} between two GPUs ============================"]
            lines += ["       " + "".join(f"{name:<13}" for name in names)]
            lines += [
                f"{name:<7}" + "".join(f"{word:<13}" for word in row) for name, row in zip(names, rows, strict=True)
            ]
            lines += [""]
    lines += ["================================== Numa Nodes =================================="]
    for k in range(count):
        lines += [f"GPU[{k}]\t\t: (Topology) Numa Node: {numa[k] if numa else 0}"]
        lines += [f"GPU[{k}]\t\t: (Topology) Numa Affinity: {numa[k] if numa else 0}"]
        lines += [f"GPU[{k}]\t\t: Card Series: \t\t{series}"] if series else []
    lines += ["================================== End of ROCm SMI Log ==================================="]
    return "\n".join(lines) + "\n"


def mesh(count, word, itself="0"):
    return [[itself if a == b else word for b in range(count)] for a in range(count)]
