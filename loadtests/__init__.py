"""Load tests for octavo and any other server with OpenAI's API.

Runs from a checkout, with the dependency group `loadtests`; the wheel doesn't hold it.
"""
