"""Measures the machine that this runs on, and writes what the predictor uses: a machine file with measured rates.

On CPUs, small models are compiled for the sites of the machine, with random cuts, and run by the runtime as any plan
is. `samples` runs the plans of `models` and times their tasks, `fit` makes lines of the times, and `machine` puts them
into a machine. On GPUs, `shapes` replays single kernels, `form_fit` fits the forms of `forms` to their times, with the
tables of `corrections`, and `gpus` puts them into a machine. `make fit-rates` fits the GPUs that come with einc by the
same code.
"""
