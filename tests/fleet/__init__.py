"""Tests of jobs in processes of their own."""
