"""Measures the machine that this runs on, and writes what the predictor uses: a machine file with measured rates.

Small models are compiled for the sites of the machine, with random cuts, and run by the runtime as any plan is. So
what is measured is what runs plans. `samples` runs the plans and times their tasks, `fit` makes rates of the times, and
`machine` puts them into a machine.
"""
