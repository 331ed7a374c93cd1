# ATSI: one Makefile. `make help` lists the targets.
#
# Variables: B=build folder   CUDA=0 leaves the GPU part out   CUDA_ARCH=sm_89 (default: this machine's card)
#            STATIC=1 links the libraries statically where Debian ships an archive   SAN=address,undefined   V=1 shows commands
MAKEFLAGS += --no-builtin-rules
.SUFFIXES:
.DELETE_ON_ERROR:

B       ?= build
CC      ?= cc
ifeq ($(origin CC),default)
CC      := cc
endif
PREFIX  ?= /usr/local
DESTDIR ?=
OPT     ?= -O2 -g
SAN     ?=
WERROR  ?= -Werror
Q       := $(if $(V),,@)

CPPFLAGS += -I. -D_GNU_SOURCE
CFLAGS   += -std=c11 $(OPT) -Wall -Wextra $(WERROR) -fno-math-errno -ffp-contract=off -pthread $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
LDFLAGS  += -pthread $(if $(SAN),-fsanitize=$(SAN))
DEPFLAGS  = -MMD -MP

# ---- CUDA: built by default where nvcc stands -----------------------------------------------------------------
NVCC    ?= $(firstword $(wildcard /usr/local/cuda/bin/nvcc) $(shell command -v nvcc 2>/dev/null))
CUDA    ?= $(if $(NVCC),1,0)
comma   := ,
ifeq ($(CUDA),1)
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(NVCC))
HAVE_CARD := $(shell nvidia-smi -L >/dev/null 2>&1 && echo 1)
ifdef CUDA_ARCH
GENCODE := $(foreach a,$(CUDA_ARCH),-gencode arch=compute_$(patsubst sm_%,%,$(a)),code=$(a))
else
GENCODE := $(if $(HAVE_CARD),-arch=native,-gencode arch=compute_75$(comma)code=sm_75 -gencode arch=compute_90$(comma)code=[sm_90$(comma)compute_90])
endif
NVFLAGS  += -std=c++17 -O3 -lineinfo -I. $(GENCODE) -Xcompiler -Wall,-Wextra --Werror all-warnings
CPPFLAGS += -DATSI_CUDA=1
CUDA_LIBS = -L$(CUDA_HOME)/lib64 -lcudart_static -ldl -lrt -lstdc++
endif

# ---- libraries ------------------------------------------------------------------------------------------------
ifeq ($(STATIC),1)
lib = -l:lib$(1).a
else
lib = -l$(1)
endif
LIBS_FORMATS = -lcjson $(call lib,zstd) $(call lib,xxhash) -lm
LIBS_RUNTIME = $(call lib,pcre2-8) $(call lib,utf8proc) $(LIBS_FORMATS)
LIBS_PLANNER = $(call lib,glpk) $(if $(filter 1,$(STATIC)),-l:libgmp.a -l:libamd.a -l:libcolamd.a -l:libsuitesparseconfig.a -lz -ldl -l:libltdl.a) $(LIBS_FORMATS)

# ---- sources: every folder is globbed, a new file needs no line here ------------------------------------------
ARCH  := $(shell uname -m)
X86    = $(filter x86_64,$(ARCH))
glob   = $(wildcard $(addsuffix /*.c,$(1)))
simd   = %_avx2.c %_avx512.c %_avx512vbmi.c %_avx512amx.c %_avxvnni.c
portable = $(if $(X86),$(1),$(filter-out $(simd),$(1)))

SRC_FORMATS  := $(call glob,formats formats/*)
SRC_KERNELS  := $(call portable,$(call glob,kernels kernels/cpu kernels/sim))
SRC_CUDA     := $(if $(filter 1,$(CUDA)),$(wildcard kernels/cuda/*.cu))
SRC_SCHEDULE := $(call glob,runtime/schedule)
SRC_RUNTIME  := $(filter-out runtime/main.c,$(call glob,runtime $(filter-out runtime/schedule,$(patsubst %/,%,$(wildcard runtime/*/)))))
SRC_PLANNER  := $(filter-out planner/main.c,$(call glob,planner planner/*))

obj = $(patsubst %,$(B)/obj/%.o,$(1))
LIB_FORMATS  := $(B)/libatsi-formats.a
LIB_KERNELS  := $(B)/libatsi-kernels.a
LIB_SCHEDULE := $(B)/libatsi-schedule.a
LIB_RUNTIME  := $(B)/libatsi-runtime.a
LIB_PLANNER  := $(B)/libatsi-planner.a

.PHONY: all help demo setup check check-only oracle soak bench lint asan tsan fuzz fuzz-build install uninstall clean tools tests
all: $(B)/atsi-plan $(B)/atsi-run tools

help:
	@echo "make            build $(B)/atsi-plan, $(B)/atsi-run and the tools"
	@echo "make demo       install what is missing, build, generate text from plans/demo.atsp"
	@echo "make check      build and run the test suite (Debian packages only)"
	@echo "make oracle     tests against PyPI oracles (llama.cpp, gguf, transformers)"
	@echo "make soak       long random runs"
	@echo "make bench      kernels, tokenizer, solver and scheduler; whole programs: docs/measuring.md"
	@echo "make lint       clang-format, clang-tidy, shellcheck, include rules"
	@echo "make asan|tsan  the test suite under sanitizers; make fuzz [FUZZ_SECONDS=60]"
	@echo "make install|uninstall PREFIX=$(PREFIX) DESTDIR="
	@echo "make setup      install the Debian packages that are missing; make clean  remove $(B)"
	@echo "variables       B=$(B) CUDA=0 CUDA_ARCH=sm_89 STATIC=1 SAN=address V=1 (the Makefile's head explains them)"

# ISA flags go by file suffix, so nothing wide leaks into the portable build.
$(B)/obj/%_avx2.c.o:    ISA := -mavx2 -mfma -mf16c -mbmi -mbmi2
$(B)/obj/%_avxvnni.c.o: ISA := -mavx2 -mfma -mf16c -mbmi -mbmi2 -mavxvnni
$(B)/obj/%_avx512.c.o:  ISA := -mavx2 -mfma -mf16c -mbmi -mbmi2 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni
$(B)/obj/%_avx512vbmi.c.o: ISA := -mavx2 -mfma -mf16c -mbmi -mbmi2 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512vbmi
$(B)/obj/%_avx512amx.c.o: ISA := -mavx2 -mfma -mf16c -mbmi -mbmi2 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mamx-tile -mamx-int8 -mamx-bf16
$(B)/obj/kernels/cpu/%: OPT := -O3 -g
$(B)/obj/formats/plan_codec.c.o: OPT := -O3 -g

# What objects are built with: where that changes (CUDA=0 after CUDA=1, another card), they are built anew.
# Expanded here: flags of single files do not belong to it.
BUILT_WITH.c  := $(CC) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS) STATIC=$(STATIC)
BUILT_WITH.cu := $(NVCC) $(NVFLAGS)
.PHONY: FORCE
$(B)/flags.c $(B)/flags.cu: FORCE
	@mkdir -p $(@D)
	@echo '$(BUILT_WITH$(suffix $@))' | cmp -s - $@ || echo '$(BUILT_WITH$(suffix $@))' >$@

$(B)/obj/%.c.o: %.c $(B)/flags.c
	@mkdir -p $(@D)
	@$(if $(V),,echo "  CC   $<")
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) $(ISA) $(DEPFLAGS) -c $< -o $@

$(B)/obj/%.cu.o: %.cu $(B)/flags.cu
	@mkdir -p $(@D)
	@$(if $(V),,echo "  NVCC $<")
	$(Q)$(NVCC) $(NVFLAGS) -MMD -MP -MF $(@:.o=.d) -c $< -o $@

define archive
	@rm -f $@
	@ar rcs $@ $^
endef
$(LIB_FORMATS):  $(call obj,$(SRC_FORMATS));  $(archive)
$(LIB_KERNELS):  $(call obj,$(SRC_KERNELS) $(SRC_CUDA)); $(archive)
$(LIB_SCHEDULE): $(call obj,$(SRC_SCHEDULE)); $(archive)
$(LIB_RUNTIME):  $(call obj,$(SRC_RUNTIME));  $(archive)
$(LIB_PLANNER):  $(call obj,$(SRC_PLANNER));  $(archive)

# Link order follows the direction of data: formats <- kernels <- schedule <- {runtime, planner}.
LOW := $(LIB_SCHEDULE) $(LIB_KERNELS) $(LIB_FORMATS)
$(B)/atsi-run: $(call obj,runtime/main.c) $(LIB_RUNTIME) $(LOW)
	@$(if $(V),,echo "  LINK $@")
	$(Q)$(CC) $(LDFLAGS) -Wl,-rpath,'$$ORIGIN' -o $@ $^ $(LIBS_RUNTIME) $(CUDA_LIBS)
$(B)/atsi-plan: $(call obj,planner/main.c) $(LIB_PLANNER) $(LOW)
	@$(if $(V),,echo "  LINK $@")
	$(Q)$(CC) $(LDFLAGS) -Wl,-rpath,'$$ORIGIN' -o $@ $^ $(LIBS_PLANNER) $(CUDA_LIBS)

# ---- tools and tests: one program a file ----------------------------------------------------------------------
SRC_TOOLS := $(wildcard tools/*.c)
SRC_UNIT  := $(wildcard tests/unit/test_*.c)
SRC_SUPPORT := $(call portable,$(wildcard tests/support/*.c))
SRC_BENCH := $(wildcard tests/bench/bench_*.c)
SRC_FUZZ  := $(wildcard tests/fuzz/fuzz_*.c)
TOOLS := $(patsubst tools/%.c,$(B)/tools/%,$(SRC_TOOLS))
LIB_SUPPORT := $(B)/libtest-support.a
$(LIB_SUPPORT): $(call obj,$(SRC_SUPPORT)); $(archive)
UNIT  := $(patsubst tests/unit/%.c,$(B)/tests/%,$(SRC_UNIT))
BENCH := $(patsubst tests/bench/%.c,$(B)/bench/%,$(SRC_BENCH))
tools: $(TOOLS)
tests: $(UNIT)

# The generator of models has parts of its own.
$(B)/tools/synth_model: $(call obj,tools/synth_model.c $(wildcard tools/synth/*.c)) $(LIB_KERNELS) $(LIB_FORMATS)
	@mkdir -p $(@D)
	@$(if $(V),,echo "  LINK $@")
	$(Q)$(CC) $(LDFLAGS) -Wl,-rpath,'$$ORIGIN/..' -o $@ $^ $(LIBS_FORMATS) $(CUDA_LIBS)
# The table of what is supported lowers models that it makes.
$(B)/tools/support_table: $(call obj,tools/support_table.c $(wildcard tools/synth/*.c)) $(LIB_PLANNER) $(LOW)
	@mkdir -p $(@D)
	@$(if $(V),,echo "  LINK $@")
	$(Q)$(CC) $(LDFLAGS) -Wl,-rpath,'$$ORIGIN/..' -o $@ $^ $(LIBS_PLANNER) $(CUDA_LIBS)
# The load generator opens the driver's library itself, so it is the same program with and without CUDA.
$(B)/tools/load: $(call obj,tools/load.c $(wildcard tools/load/*.c)) $(LIB_FORMATS)
	@mkdir -p $(@D)
	@$(if $(V),,echo "  LINK $@")
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ -ldl
$(B)/tools/%: $(B)/obj/tools/%.c.o $(LIB_PLANNER) $(LIB_RUNTIME) $(LOW)
	@mkdir -p $(@D)
	@$(if $(V),,echo "  LINK $@")
	$(Q)$(CC) $(LDFLAGS) -Wl,-rpath,'$$ORIGIN/..' -o $@ $^ $(LIBS_PLANNER) $(LIBS_RUNTIME) $(CUDA_LIBS)
$(B)/tests/%: $(B)/obj/tests/unit/%.c.o $(LIB_SUPPORT) $(LIB_PLANNER) $(LIB_RUNTIME) $(LOW)
	@mkdir -p $(@D)
	@$(if $(V),,echo "  LINK $@")
	$(Q)$(CC) $(LDFLAGS) -Wl,-rpath,'$$ORIGIN/..' -o $@ $^ -lcmocka $(LIBS_PLANNER) $(LIBS_RUNTIME) $(CUDA_LIBS)
# What runs on a machine with a card (tests/gpu/run.sh) needs neither planner nor runtime.
$(B)/gpu/test_cuda: $(call obj,$(wildcard tests/gpu/*.c)) $(call obj,tests/support/op_case.c tests/support/gpu_case.c tests/support/division_case.c tests/support/test_temp.c) $(LOW)
	@mkdir -p $(@D)
	@$(if $(V),,echo "  LINK $@")
	$(Q)$(CC) $(LDFLAGS) -Wl,-rpath,'$$ORIGIN' -o $@ $^ -lcmocka $(LIBS_FORMATS) $(CUDA_LIBS)
$(B)/bench/bench_cuda: $(call obj,tests/bench/bench_cuda.c $(wildcard tests/bench/cuda_*.c)) $(LOW)
	@mkdir -p $(@D)
	@$(if $(V),,echo "  LINK $@")
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LIBS_FORMATS) $(CUDA_LIBS)
$(B)/bench/%: $(B)/obj/tests/bench/%.c.o $(LIB_PLANNER) $(LIB_RUNTIME) $(LOW)
	@mkdir -p $(@D)
	@$(if $(V),,echo "  LINK $@")
	$(Q)$(CC) $(LDFLAGS) -Wl,-rpath,'$$ORIGIN/..' -o $@ $^ $(LIBS_PLANNER) $(LIBS_RUNTIME) $(CUDA_LIBS)
.SECONDARY:

# The two commands of a newcomer use all cores unless told otherwise.
JOBS = $(if $(findstring -j,$(MAKEFLAGS)),,-j$(shell nproc))
setup:
	@tools/setup.sh
demo: setup
	@$(MAKE) $(JOBS) --no-print-directory all
	@tools/demo.sh $(B)
check: setup
	@$(MAKE) $(JOBS) --no-print-directory all tests
	@B=$(B) tests/run.sh
# The suite without the set-up step: what the sanitizer builds run.
check-only: all tests
	@B=$(B) tests/run.sh
oracle: all tests
	@B=$(B) tests/oracle/run.sh
soak: all tests
	@B=$(B) tests/soak.sh
bench: all $(BENCH)
	@B=$(B) tests/bench/run.sh
lint:
	@tools/lint.sh
# Instrumented programs take many times as long.
asan tsan: export ATSI_TEST_TIMEOUT ?= 1800
asan:
	@ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1 $(MAKE) B=build/asan SAN=address,undefined OPT='-O1 -g' CUDA=0 check-only
tsan:
	@$(MAKE) B=build/tsan SAN=thread OPT='-O1 -g' CUDA=0 check-only
FUZZ_SECONDS ?= 60
fuzz:
	@$(MAKE) B=build/fuzz CC=clang SAN=fuzzer-no-link,address,undefined OPT='-O1 -g' CUDA=0 fuzz-build
	@B=build/fuzz FUZZ_SECONDS=$(FUZZ_SECONDS) tests/fuzz/run.sh
fuzz-build: $(patsubst tests/fuzz/%.c,$(B)/fuzz/%,$(SRC_FUZZ)) $(B)/fuzz/seeds
# Nothing that is fuzzed computes: the kernels stay out, which instrumented take minutes to compile.
FUZZ_LIBS := $(LIB_SUPPORT) $(LIB_PLANNER) $(LIB_RUNTIME) $(LIB_FORMATS)
$(B)/fuzz/seeds: $(B)/obj/tests/fuzz/seeds.c.o $(FUZZ_LIBS)
	@mkdir -p $(@D)
	@$(if $(V),,echo "  LINK $@")
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LIBS_PLANNER) $(LIBS_RUNTIME)
$(B)/fuzz/%: $(B)/obj/tests/fuzz/%.c.o $(FUZZ_LIBS)
	@mkdir -p $(@D)
	@$(if $(V),,echo "  LINK $@")
	$(Q)clang -pthread -fsanitize=fuzzer,address,undefined -o $@ $^ $(LIBS_PLANNER) $(LIBS_RUNTIME)

install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/share/atsi/plans $(DESTDIR)$(PREFIX)/share/doc/atsi/docs
	install -m 755 $(B)/atsi-plan $(B)/atsi-run $(DESTDIR)$(PREFIX)/bin
	install -m 644 $(wildcard plans/*.atsp plans/*.json) $(DESTDIR)$(PREFIX)/share/atsi/plans
	install -m 644 README.md CONTRIBUTING.md LICENSE $(DESTDIR)$(PREFIX)/share/doc/atsi
	install -m 644 $(wildcard docs/*) $(DESTDIR)$(PREFIX)/share/doc/atsi/docs
uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/atsi-plan $(DESTDIR)$(PREFIX)/bin/atsi-run
	rm -rf $(DESTDIR)$(PREFIX)/share/atsi $(DESTDIR)$(PREFIX)/share/doc/atsi
clean:
	rm -rf $(B)

-include $(shell find $(B)/obj -name '*.d' 2>/dev/null)
