"""Texts as `nvidia-smi topo -m` and NCCL write them, made from the tables of links that they describe."""

DGX1V = """
X 1 1 2 2 S S S
1 X 2 1 S 2 S S
1 2 X 2 S S 1 S
2 1 2 X S S S 1
2 S S S X 1 1 2
S 2 S S 1 X 2 1
S S 1 S 1 2 X 2
S S S 1 2 1 2 X
"""
LEGEND = """
Legend:

  X    = Self
  SYS  = over PCIe and between NUMA nodes
  PIX  = over one PCIe bridge
  NV#  = a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
"""


def cells(table):
    """`X`, `NV1` and `SYS` of a table of counts."""
    words = {"X": "X", "S": "SYS"}
    return [[words.get(word, f"NV{word}") for word in row.split()] for row in table.strip().splitlines()]


def switched(sites, links):
    return [["X" if a == b else f"NV{links}" for b in range(sites)] for a in range(sites)]


def old_style(rows):
    """A driver of 2018: aligned with spaces, one network card, one affinity."""
    names = [f"GPU{k}" for k in range(len(rows))]
    lines = ["        " + "".join(f"{name:<8}" for name in (*names, "mlx5_0")) + "CPU Affinity"]
    lines += [
        f"{name:<8}" + "".join(f"{word:^8}" for word in (*row, "PHB")) + "0-19,40-59"
        for name, row in zip(names, rows, strict=True)
    ]
    lines.append("mlx5_0  " + "PHB     " * len(rows) + " X ")
    return "\n".join(lines) + "\n" + LEGEND


def new_style(rows, before=""):
    """A driver of 2024: tabs, an underlined header, empty and `N/A` affinities, after a shell prompt."""
    names = [f"GPU{k}" for k in range(len(rows))]
    header = "\t".join((*names, "NIC0", "NIC1", "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"))
    lines = [before + "user@node:~$ nvidia-smi topo -m", f"\t\x1b[4m{header}\x1b[0m"]
    for k, (name, row) in enumerate(zip(names, rows, strict=True)):
        affinity = "0-55,112-167\t0\t\tN/A" if k % 2 else "\t1\t\tN/A"
        words = [" X " if word == "X" else word for word in row]
        lines.append("\t".join((name, *words, "PXB", "SYS", affinity)))
    for nic in ("NIC0", "NIC1"):
        lines.append("\t".join((nic, *["SYS"] * len(rows), " X ", "PIX", "", "")))
    return "\n".join(lines) + "\n" + LEGEND


def bus(site):
    return f"0000:{16 + 8 * site:02x}:00.0"


def nccl(rows, *, sm=70, device="0x1db5", speed="8 GT/s", switches=0):
    """NCCL's dump: each GPU behind a bridge, two CPUs, a network card; links to switches spread over `switches`."""
    parts = ['<system version="1">']
    half = (len(rows) + 1) // 2
    for numa in (0, 1):
        parts.append(f'  <cpu host_hash="0x7" numaid="{numa}" arch="x86_64" vendor="GenuineIntel">')
        parts.append('    <nic><net name="mlx5_0" dev="0" speed="100000"/></nic>')
        # the second half first: sites follow device numbers, not the order of the file
        for site in list(range(len(rows)))[half:] if numa == 0 else range(half):
            parts.append(f'    <pci busid="0000:{15 + 8 * site:02x}:00.0" class="0x060400" link_speed="2.5 GT/s">')
            parts.append(
                f'      <pci busid="{bus(site).upper()}" class="0x030200" device="{device}" '
                f'link_speed="{speed}" link_width="16">'
            )
            parts.append(f'        <gpu dev="{site}" sm="{sm}" rank="{site}" gdr="1">')
            links = {peer: int(word[2:]) for peer, word in enumerate(rows[site]) if word.startswith("NV")}
            if switches:
                total = max(links.values())
                shares = [total // switches + (k < total % switches) for k in range(switches)]
                parts += [
                    f'          <nvlink target="0000:{192 + k:02x}:00.0" count="{share}" tclass="0x068000"/>'
                    for k, share in enumerate(shares)
                ]
            else:
                parts += [
                    f'          <nvlink target="{bus(peer)}" count="{count}" tclass="0x030200"/>'
                    for peer, count in links.items()
                ]
            parts += ['          <c2c bw="400" count="1"/>', "        </gpu>", "      </pci>", "    </pci>"]
        parts.append("  </cpu>")
    return "\n".join((*parts, "</system>")) + "\n"


def rccl(links, *, units=104, gcn="910", device="0x740c", sockets=2):
    """RCCL's dump, version 2: `links` are the xGMI links of pairs; each GPU behind two bridges of its own."""
    sites = 1 + max(map(max, links)) if links else 4
    ends = {**links, **{(b, a): count for (a, b), count in links.items()}}
    parts = ["<!-- a comment -->", '<system version="2">']
    for socket in range(sockets):
        parts.append(f'  <cpu numaid="{socket}" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="49">')
        for site in range(sites):
            if site * sockets // sites != socket:
                continue
            for above in (1, 2):
                parts.append(
                    f'<pci busid="{above:04x}:{16 + 8 * site:02x}:01.0" class="0x060400" vendor="0x1000" '
                    'link_speed="16.0 GT/s PCIe" link_width="16">'
                )
            parts.append(
                f'<pci busid="{bus(site)}" class="0x038000" vendor="0x1002" device="{device}" '
                'link_speed="16.0 GT/s PCIe" link_width="16">'
            )
            parts.append(f'<gpu dev="{site}" sm="{units}" gcn="{gcn}" arch="38911" rank="{site}" gdr="1">')
            parts += [
                f'<xgmi target="{bus(b).upper()}" count="{count}" tclass="0x038000"/>'
                for (a, b), count in ends.items()
                if a == site
            ]
            parts += ["</gpu>", *["</pci>"] * 3]
        parts.append("  </cpu>")
    return "\n".join((*parts, "</system>")) + "\n"


def peers(words):
    """The table of `nvidia-smi topo -p2p r` of rows of words."""
    names = [f"GPU{k}" for k in range(len(words))]
    lines = [" \t" + "\t".join(names) + "\t"]
    lines += [f" {name}\t" + "\t".join(row) + "\t" for name, row in zip(names, words, strict=True)]
    return "\n".join(lines) + "\n\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n  GNS  = GPU not supported\n"
