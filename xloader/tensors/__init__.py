"""Turns arrays into tensors: conversion, collate functions, and transforms of single samples."""
