#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Writes the transfers that examples/bank.cpp plays when no other file is named.

usage: make_transfers.py > transfers.csv

The same in every run. 1,000 accounts: ten shops are in every third transfer, the first of them most
often; 990 people are in the rest. Times are milliseconds since the bank opened, amounts are cents.
"""
import random

PEOPLE = 990
SHOPS = 10
TRANSFERS = 20_000
SEED = 2


def main():
    # Only random() is drawn from: it gives the same numbers in every version of Python.
    draw = random.Random(SEED).random

    def person():
        return f"person-{int(draw() * PEOPLE):03}"

    def shop():
        return f"shop-{int(draw() ** 3 * SHOPS)}"

    print("time,from,to,amount")
    time = 0
    for _ in range(TRANSFERS):
        time += int(draw() * 20)
        kind = draw()
        if kind < 0.28:
            sender, receiver = person(), shop()
        elif kind < 0.33:
            sender, receiver = shop(), person()
        else:
            sender, receiver = person(), person()
            while receiver == sender:
                receiver = person()
        amount = 1 + int(draw() ** 4 * 20_000)
        print(f"{time},{sender},{receiver},{amount}")


if __name__ == "__main__":
    main()
