"""The workloads of the paper's Experiment 1, written with the Python API; `models/` has them as model texts."""

import einc as es


def _declare(graph, dims, tensors):
    """The first of the tensors is the input, the others are weights; all of them by name."""
    tensors_made = []
    for number, (name, names, *stored) in enumerate(tensors):
        desc = es.tensorDesc([(dim, dims[dim]) for dim in names.split()], "f16")
        tensors_made.append(graph.insertWeight(desc, name, *stored) if number else graph.insertTensor(desc, name))
    return tensors_made


def llama_block(seq_lens=(1024,) * 8):
    graph = es.createGraph("llama_block")
    dims = {"tokens": sum(seq_lens), "d_model": 4096, "heads_q": 32, "heads_kv": 8, "d_head": 128, "d_ff": 14336}
    x, g_attn, w_q, w_k, w_v, w_o, g_ffn, w_gate, w_up, w_down = _declare(
        graph,
        dims,
        [
            ("x", "tokens d_model"),
            ("g_attn", "d_model", "input_layernorm.weight"),
            ("w_q", "heads_q d_head d_model", "self_attn.q_proj.weight"),
            ("w_k", "heads_kv d_head d_model", "self_attn.k_proj.weight"),
            ("w_v", "heads_kv d_head d_model", "self_attn.v_proj.weight"),
            ("w_o", "d_model heads_q d_head", "self_attn.o_proj.weight"),
            ("g_ffn", "d_model", "post_attention_layernorm.weight"),
            ("w_gate", "d_ff d_model", "mlp.gate_proj.weight"),
            ("w_up", "d_ff d_model", "mlp.up_proj.weight"),
            ("w_down", "d_model d_ff", "mlp.down_proj.weight"),
        ],
    )
    h = graph.rmsnorm(x, g_attn, eps=1e-5, name="h")
    q = graph.equation("q[heads_q, tokens, d_head] = h[tokens, d_model] * w[heads_q, d_head, d_model]", h=h, w=w_q)
    k = graph.equation("k[heads_kv, tokens, d_head] = h[tokens, d_model] * w[heads_kv, d_head, d_model]", h=h, w=w_k)
    v = graph.equation("v[heads_kv, tokens, d_head] = h[tokens, d_model] * w[heads_kv, d_head, d_model]", h=h, w=w_v)
    rq = graph.rope(q, theta=500000.0, seq_lens=seq_lens, name="rq")
    rk = graph.rope(k, theta=500000.0, seq_lens=seq_lens, name="rk")
    a = graph.attention(rq, rk, v, causal=True, seq_lens=seq_lens, name="a")
    o = graph.equation("o[tokens, d_model] = a[heads_q, tokens, d_head] * w[d_model, heads_q, d_head]", a=a, w=w_o)
    r = graph.binary(x, o, "add", name="r")
    n = graph.rmsnorm(r, g_ffn, eps=1e-5, name="n")
    gate = graph.equation("gate[tokens, d_ff] = n[tokens, d_model] * w[d_ff, d_model]", n=n, w=w_gate)
    up = graph.equation("up[tokens, d_ff] = n[tokens, d_model] * w[d_ff, d_model]", n=n, w=w_up)
    f = graph.binary(graph.unary(gate, "silu"), up, "mul", name="f")
    down = graph.equation("down[tokens, d_model] = f[tokens, d_ff] * w[d_model, d_ff]", f=f, w=w_down)
    graph.save(r + down, "y")
    return graph


def _chain(letter, sizes, shapes, scale):
    graph = es.createGraph(f"chain_{letter}")
    dims = {name: extent // scale for name, extent in sizes.items()}
    return graph, _declare(graph, dims, [(f"m{k}", names) for k, names in enumerate(shapes, 1)])


def chain_a(scale=1):
    shapes = ["ends wide", "wide narrow", *["narrow wide", "wide narrow"] * 3, "narrow ends"]
    graph, (m1, m2, m3, m4, m5, m6, m7, m8, m9) = _chain(
        "a", {"ends": 10240, "wide": 16384, "narrow": 6144}, shapes, scale
    )
    p12, p34 = graph.matmul(m1, m2, "p12"), graph.matmul(m3, m4, "p34")
    p5678 = graph.matmul(graph.matmul(m5, m6, "p5678.1"), graph.matmul(m7, m8, "p5678.2"), "p5678")
    p345678 = graph.matmul(p34, p5678, "p345678")
    graph.save(graph.matmul(p12, graph.matmul(p345678, m9, "y.1"), "y"))
    return graph


def chain_b(scale=1):
    shapes = ["ends wide", "wide narrow", "narrow wide", "wide narrow", "narrow ends"]
    graph, (m1, m2, m3, m4, m5) = _chain("b", {"ends": 9216, "wide": 20480, "narrow": 5120}, shapes, scale)
    p12 = graph.matmul(m1, m2, "p12")
    p345 = graph.matmul(graph.matmul(m3, m4, "p345.1"), m5, "p345")
    graph.save(p12 @ p345, "y")
    return graph


def chain_c(scale=1):
    sizes = {"rows": 10240, "inner": 12288, "wide": 32768, "columns": 2048}
    graph, (m1, m2, m3) = _chain("c", sizes, ["rows inner", "inner wide", "wide columns"], scale)
    graph.save(m1 @ graph.matmul(m2, m3, "p23"), "y")
    return graph


def _from_the_right(graph, matrices, labels):
    """The products of a chain from the last but one to the second, then by the last, then by the first."""
    first, *middle, before, last = matrices
    product = before
    for matrix, label in zip(reversed(middle), labels, strict=True):
        product = graph.matmul(matrix, product, label)
    graph.save(first @ graph.matmul(product, last, "y.1"), "y")
    return graph


def chain_d(scale=1):
    shapes = ["ends neck", "neck wide", *["wide wide"] * 5, "wide neck", "neck ends"]
    graph, matrices = _chain("d", {"ends": 24576, "neck": 1536, "wide": 20480}, shapes, scale)
    return _from_the_right(graph, matrices, [f"p{k}8" for k in range(7, 1, -1)])


def chain_e(scale=1):
    shapes = ["ends neck", "neck wide", *["wide wide"] * 9, "wide neck", "neck ends"]
    graph, matrices = _chain("e", {"ends": 49152, "neck": 1024, "wide": 20480}, shapes, scale)
    return _from_the_right(graph, matrices, [f"p{k}_12" for k in range(11, 1, -1)])
