"""Benchmarks: a BenchmarkJob's runs of genai-bench, what came of each, and how one compares with another."""
