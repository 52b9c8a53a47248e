"""A small preamble for proposals of programs, a program for it that splits atoms, and a request for proposals."""

from einc.exchange.synthesis import synthesize_naive
from einc.exchange.synthesis.proposers import ProposalRequest
from einc.machines.load import load_machine
from tests.support.preambles import read_preamble

MACHINE = load_machine("dgx-h100").ideal()
BARE = "IN: A @ 0; B @ 1\nOUT: A+B @ 0, 1\n"
PREAMBLE = read_preamble(BARE, "p", MACHINE)
SPLIT = "IN: A.1 @ 0 (size: 500 MB); A.2 @ 0 (size: 500 MB); B.1 @ 1 (size: 500 MB); B.2 @ 1 (size: 500 MB)\n"
SPLIT += "OUT: A.1+B.1 @ 0, 1; A.2+B.2 @ 0, 1\nA.1 @ 0 -> 1\nA.1+B.1 @ 1 -> 0\nB.2 @ 1 -> 0\nA.2+B.2 @ 0 -> 1\n"


def make_request(number=0, answers=(), seconds=60.0):
    naive = synthesize_naive(PREAMBLE, MACHINE)
    return ProposalRequest(PREAMBLE, MACHINE, naive.program, naive.completion_ms, seconds, number, answers)
