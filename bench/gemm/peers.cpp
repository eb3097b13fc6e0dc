#include "bench/gemm/peers.h"

#include <cstdlib>
#include <memory>
#include <string>
#include <unordered_map>

#if defined(HPCDL_HAS_DNNL)
#include <dnnl.hpp>
#endif
#if defined(HPCDL_HAS_OPENBLAS)
#include <cblas.h>
extern "C" char* openblas_get_corename();
#endif

namespace hpcdl::bench {

#if defined(HPCDL_HAS_DNNL)
namespace {

using dnnl::memory;

struct Product {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  memory::desc plain_b;
  dnnl::matmul::primitive_desc desc;
  dnnl::matmul matmul;
  std::unordered_map<int, memory> args;
};

std::shared_ptr<Product> make(const Case& c, bool packed, const float* bias, const float* addend) {
  using T = memory::data_type;
  using F = memory::format_tag;
  auto p = std::make_shared<Product>();
  const bool bytes = c.compute == gemm::Compute::int8, half = c.compute == gemm::Compute::bf16;
  const T ta = bytes ? T::u8 : half ? T::bf16 : T::f32, tb = bytes ? T::s8 : ta, td = bytes ? T::s32 : T::f32;
  const memory::desc a({c.m, c.k}, ta, c.a_transposed ? F::ba : F::ab), d({c.m, c.n}, td, F::ab),
      row({1, c.n}, T::f32, F::ab);
  p->plain_b = memory::desc({c.k, c.n}, tb, c.b_transposed ? F::ba : F::ab);
  const memory::desc b = packed ? memory::desc({c.k, c.n}, tb, F::any) : p->plain_b;
  dnnl::primitive_attr attr;
  dnnl::post_ops ops;
  if (c.post == Post::add_relu) ops.append_binary(dnnl::algorithm::binary_add, d);
  if (c.post == Post::relu || c.post == Post::add_relu) ops.append_eltwise(1, dnnl::algorithm::eltwise_relu, 0, 0);
  if (c.post == Post::gelu_tanh || c.post == Post::bias_gelu_tanh)
    ops.append_eltwise(1, dnnl::algorithm::eltwise_gelu_tanh, 0, 0);
  attr.set_post_ops(ops);
  const bool biased = c.post == Post::bias_gelu_tanh;
  const auto desc = biased ? dnnl::matmul::desc(a, b, row, d) : dnnl::matmul::desc(a, b, d);
  p->desc = dnnl::matmul::primitive_desc(desc, attr, p->engine);
  p->matmul = dnnl::matmul(p->desc);
  p->args[DNNL_ARG_SRC] = memory(a, p->engine, nullptr);
  p->args[DNNL_ARG_WEIGHTS] = memory(p->desc.weights_desc(), p->engine, nullptr);
  p->args[DNNL_ARG_DST] = memory(d, p->engine, nullptr);
  if (biased) p->args[DNNL_ARG_BIAS] = memory(row, p->engine, const_cast<float*>(bias));
  if (c.post == Post::add_relu)
    p->args[DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1] = memory(d, p->engine, const_cast<float*>(addend));
  return p;
}

}  // namespace

Peer onednn(const Case& c, bool packed, const float* bias, const float* addend) {
  const auto p = make(c, packed, bias, addend);
  Peer out;
  out.call = [p](const void* a, const void* b, void* d) {
    p->args.at(DNNL_ARG_SRC).set_data_handle(const_cast<void*>(a));
    p->args.at(DNNL_ARG_WEIGHTS).set_data_handle(const_cast<void*>(b));
    p->args.at(DNNL_ARG_DST).set_data_handle(d);
    p->matmul.execute(p->stream, p->args);
    p->stream.wait();
  };
  if (packed) {
    out.prepared_bytes = static_cast<std::int64_t>(p->desc.weights_desc().get_size());
    out.prepare = [p](const void* b, void* to) {
      memory from(p->plain_b, p->engine, const_cast<void*>(b)), into(p->desc.weights_desc(), p->engine, to);
      dnnl::reorder(from, into).execute(p->stream, from, into);
      p->stream.wait();
    };
  }
  return out;
}

const char* onednn_version() {
  static const std::string text = std::to_string(dnnl::version()->major) + "." +
                                  std::to_string(dnnl::version()->minor) + "." + std::to_string(dnnl::version()->patch);
  return text.c_str();
}
#else
Peer onednn(const Case&, bool, const float*, const float*) { return {}; }
const char* onednn_version() { return "missing"; }
#endif

#if defined(HPCDL_HAS_OPENBLAS)
Peer openblas(const Case& c) {
  if (c.compute != gemm::Compute::f32 || c.post != Post::none) return {};
  Peer out;
  out.call = [c](const void* a, const void* b, void* d) {
    const auto fa = static_cast<const float*>(a), fb = static_cast<const float*>(b);
    if (c.m == 1) {
      const auto rows = static_cast<int>(c.b_transposed ? c.n : c.k),
                 cols = static_cast<int>(c.b_transposed ? c.k : c.n);
      cblas_sgemv(CblasRowMajor, c.b_transposed ? CblasNoTrans : CblasTrans, rows, cols, 1, fb, cols, fa, 1, 0,
                  static_cast<float*>(d), 1);
      return;
    }
    cblas_sgemm(CblasRowMajor, c.a_transposed ? CblasTrans : CblasNoTrans, c.b_transposed ? CblasTrans : CblasNoTrans,
                static_cast<int>(c.m), static_cast<int>(c.n), static_cast<int>(c.k), 1, fa,
                static_cast<int>(c.a_transposed ? c.m : c.k), fb, static_cast<int>(c.b_transposed ? c.k : c.n), 0,
                static_cast<float*>(d), static_cast<int>(c.n));
  };
  return out;
}
const char* openblas_version() {
  static const std::string text = std::string("core ") + openblas_get_corename();
  return text.c_str();
}
#else
Peer openblas(const Case&) { return {}; }
const char* openblas_version() { return "missing"; }
#endif

}  // namespace hpcdl::bench
