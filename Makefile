# Thin on purpose: what is done stands in make.py. Words for it: make test ARGS="-k cosine"
PY ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done || echo python3)

.PHONY: demo test lint ci lock clean
demo test lint ci lock clean:
	@$(PY) make.py $@ $(ARGS)
