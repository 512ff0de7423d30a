"""One measurement of the Python package quoracle, in one process.

usage: quoracle_bench.py SYSTEM SIZE TASK
  SYSTEM  majority n | grid k | rowcol k | tree n | maj3 depth
  TASK    load1 (read_fraction=1) | load0 (read_fraction=0) | resilience
prints: value seconds   (seconds: building the system + the computation)
"""
import sys
import time

from quoracle import Node, QuorumSystem, choose, majority


def any_of(es):
    return choose(1, es)


def all_of(es):
    return choose(len(es), es)


def grid(k):  # a*b*c + d*e*f + ...: a read is a full row, a write (dual) hits every row
    return any_of([all_of([Node(r * k + c) for c in range(k)]) for r in range(k)])


def rowcol(k):  # a full row and a full column: one coterie (nodes occur twice)
    ns = [[Node(r * k + c) for c in range(k)] for r in range(k)]
    rows = any_of([all_of(row) for row in ns])
    cols = any_of([all_of(list(col)) for col in zip(*ns)])
    return rows * cols


def tree(n, i=0):  # Agrawal-El Abbadi: root*(L+R) + L*R, that is 2 of {root, L, R}
    if 2 * i + 2 >= n:
        return Node(i)
    return choose(2, [Node(i), tree(n, 2 * i + 1), tree(n, 2 * i + 2)])


def maj3(depth, i=0):  # recursive 2-of-3 over 3**depth leaves
    if depth == 0:
        return Node(i)
    return choose(2, [maj3(depth - 1, 3 * i + j) for j in range(3)])


def build(system, size):
    if system == 'majority':
        return QuorumSystem(reads=majority([Node(i) for i in range(size)]))
    if system == 'rowcol':
        e = rowcol(size)
        return QuorumSystem(reads=e, writes=e)
    return QuorumSystem(reads={'grid': grid, 'tree': tree, 'maj3': maj3}[system](size))


def main():
    system, size, task = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    start = time.perf_counter()
    qs = build(system, size)
    if task == 'resilience':
        value = qs.resilience()
    else:
        value = qs.load(read_fraction=1.0 if task == 'load1' else 0.0)
    print(value, time.perf_counter() - start)


main()
