#pragma once
// The parts of the module, one file each.

#include <nanobind/nanobind.h>

namespace hpcdl::python {

void bind_adamw(nanobind::module_& m);
void bind_array(nanobind::module_& m);
void bind_attention(nanobind::module_& m);
void bind_compare(nanobind::module_& m);
void bind_embedder(nanobind::module_& m);
void bind_engine(nanobind::module_& m);
void bind_files(nanobind::module_& m);
void bind_int4(nanobind::module_& m);
void bind_linear(nanobind::module_& m);
void bind_loss(nanobind::module_& m);
void bind_matmul(nanobind::module_& m);
void bind_norm(nanobind::module_& m);
void bind_packed(nanobind::module_& m);
void bind_rows(nanobind::module_& m);
void bind_runtime(nanobind::module_& m);

}  // namespace hpcdl::python
