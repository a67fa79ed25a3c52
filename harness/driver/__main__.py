"""`python -m harness.driver CONFIG`."""

from harness.driver.main import main

main()
