"""GPU and engine metrics from outside of the run: sources (PromQL, scrape, simulated), roles, profiles, join, alerts.

roles → what is asked for; profiles → how an exporter calls it; a source reads roles; join puts the series to replicas.
"""
