"""`python -m loadtests`: what `octavo bench` runs."""

from loadtests.bench import main

main()
