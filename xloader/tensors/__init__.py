"""Turns arrays into tensors: conversion, collate, and transforms of single items."""
