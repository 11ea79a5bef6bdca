"""Running benchmarks: config, job, engine, folder. No formulas."""
