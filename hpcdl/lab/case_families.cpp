// Every op at chosen shapes. Large means at least four times a cache of 32 MiB even in bf16, so that no data of one run
// are left for the next; the other shapes are those of GPT-2 124M with 1024 tokens.

#include "hpcdl/lab/cases.h"
#include "hpcdl/ops/adamw/adamw.h"
#include "hpcdl/ops/adaptive_avg_pool2d/adaptive_avg_pool2d.h"
#include "hpcdl/ops/add/add.h"
#include "hpcdl/ops/argmax/argmax.h"
#include "hpcdl/ops/attention/attention.h"
#include "hpcdl/ops/avg_pool2d/avg_pool2d.h"
#include "hpcdl/ops/batch_norm/batch_norm.h"
#include "hpcdl/ops/bias_gelu/bias_gelu.h"
#include "hpcdl/ops/cast/cast.h"
#include "hpcdl/ops/conv2d/conv2d.h"
#include "hpcdl/ops/cross_entropy/smooth.h"
#include "hpcdl/ops/dropout/dropout.h"
#include "hpcdl/ops/embedding/embedding.h"
#include "hpcdl/ops/fill/fill.h"
#include "hpcdl/ops/fuse/probe.h"
#include "hpcdl/ops/gelu/gelu.h"
#include "hpcdl/ops/grad_norm/grad_norm.h"
#include "hpcdl/ops/int4_embedding/int4_embedding.h"
#include "hpcdl/ops/int4_linear/int4_linear.h"
#include "hpcdl/ops/kv_cache/kv_cache.h"
#include "hpcdl/ops/layer_norm/layer_norm.h"
#include "hpcdl/ops/linear/linear.h"
#include "hpcdl/ops/lm_head_gradient/lm_head_gradient.h"
#include "hpcdl/ops/lm_head_loss/lm_head_loss.h"
#include "hpcdl/ops/loss_scale/loss_scale.h"
#include "hpcdl/ops/matmul/matmul.h"
#include "hpcdl/ops/max_pool2d/max_pool2d.h"
#include "hpcdl/ops/mlp/mlp.h"
#include "hpcdl/ops/norm_qkv/norm_qkv.h"
#include "hpcdl/ops/norm_swiglu/norm_swiglu.h"
#include "hpcdl/ops/relu/relu.h"
#include "hpcdl/ops/rms_norm/rms_norm.h"
#include "hpcdl/ops/rope/rope.h"
#include "hpcdl/ops/sgd/sgd.h"
#include "hpcdl/ops/softmax/softmax.h"
#include "hpcdl/ops/swiglu/swiglu.h"
#include "hpcdl/ops/top1/top1.h"

namespace hpcdl::lab {

namespace {

using Families = std::vector<CaseFamily>;

/// An input with a gradient, if the graph records gradients.
Var leaf(Graph& g, const char* name, Shape s, DType d) { return g.differentiable_input(name, {s, d}); }
Var indices(Graph& g, const char* name, Shape s) { return g.input(name, {s, DType::i32}); }

const Shape kPlane{8192, 4096}, kVector{33554432};  // 128 MiB in f32

/// One input, one output of its shape.
template <class F> CaseFamily unary(std::string op, std::string dims, std::vector<Shape> shapes, F f) {
  return {.op = std::move(op),
          .dims = std::move(dims),
          .shapes = std::move(shapes),
          .forward_shapes = {},
          .forward = [f](Graph& g, const Shape& s, DType d) { return f(leaf(g, "x", s, d)); }};
}
/// Two inputs of the output's shape.
template <class F> CaseFamily binary(std::string op, std::string dims, std::vector<Shape> shapes, F f) {
  return {.op = std::move(op),
          .dims = std::move(dims),
          .shapes = std::move(shapes),
          .forward_shapes = {},
          .forward = [f](Graph& g, const Shape& s, DType d) { return f(leaf(g, "a", s, d), leaf(g, "b", s, d)); }};
}

void element_wise(Families& to) {
  const std::vector<Shape> planes{kPlane, {1024, 3072}}, vectors{kVector, {786432}};
  to.push_back(binary("add", "N", vectors, [](Var a, Var b) { return add(a, b); }));
  to.push_back(unary("relu", "RxC", planes, [](Var x) { return relu(x); }));
  to.push_back(unary("gelu", "RxC", planes, [](Var x) { return gelu(x); }));
  to.push_back(unary("gelu+erf", "RxC", planes, [](Var x) { return gelu(x, {Gelu::Form::erf}); }));
  to.push_back(unary("bias_gelu", "RxC", planes,
                     [](Var x) { return bias_gelu(x, leaf(x.graph(), "bias", {x[-1]}, x.dtype())); }));
  to.push_back(binary("swiglu", "RxC", planes, [](Var gate, Var up) { return swiglu(gate, up); }));
  to.push_back(unary("dropout", "N", vectors, [](Var x) { return dropout(x, 0.1f); }));
  to.push_back(
      unary("cast", "N", vectors, [](Var x) { return cast(x, x.dtype() == DType::f32 ? DType::bf16 : DType::f32); }));
}

/// y = gelu(2 x + bias) + x, composed at compile time into one pass.
Var fused_chain(Graph& g, const Shape& s, DType d) {
  const Var x = leaf(g, "x", s, d), bias = leaf(g, "bias", {s[-1]}, d), y = g.temporary("fuse", x.spec());
  const Operand operands[] = {write_operand(y), read_operand(x), read_operand(bias)};
  const RunFn run = [](Stream& stream, const Grad* t, const void*) {
    on(stream, [&](auto isa, Pool& pool) {
      fuse::probe(isa, pool, fuse::Probe::scale_bias_gelu_residual, t[0], t[1], t[2], t[2]);
    });
  };
  g.emit("fuse", run, operands, nullptr, 0, {.operations = 15.0 * static_cast<double>(x.spec().size())});
  return y;
}

void raw_element_wise(Families& to) {
  to.push_back({.op = "fuse",
                .dims = "RxC",
                .gradient = false,
                .shapes = {kPlane, {1024, 3072}},
                .forward_shapes = {},
                .forward = fused_chain});
  to.push_back({.op = "fill",
                .dims = "N",
                .gradient = false,
                .shapes = {{67108864}, {786432}},
                .forward_shapes = {},
                .forward = [](Graph& g, const Shape& s, DType d) {
                  const Var y = g.temporary("y", {s, d});
                  const Operand operand = write_operand(y);
                  const Fill::Args args{1};
                  g.emit(Fill::name, op_info<Fill>.forward, std::span(&operand, 1), &args, sizeof args);
                  return y;
                }});
  to.push_back({.op = "fill+add_into",
                .dims = "N",
                .gradient = false,
                .shapes = {kVector, {786432}},
                .forward_shapes = {},
                .forward = [](Graph& g, const Shape& s, DType d) {
                  const Var y = leaf(g, "y", s, d), x = leaf(g, "x", s, d);
                  const Operand operands[] = {update_operand(y), read_operand(x)};
                  g.emit<AddInto>(operands, nullptr, 0, AddInto::cost(x.spec()));
                  return Var();
                }});
}

template <class F> CaseFamily rows(std::string op, std::vector<Shape> shapes, F f) {
  return {.op = std::move(op),
          .dims = "RxC",
          .shapes = std::move(shapes),
          .forward_shapes = {},
          .forward = [f](Graph& g, const Shape& s, DType d) {
            return f(leaf(g, "x", s, d), leaf(g, "gamma", {s[-1]}, d));
          }};
}

void row_wise(Families& to) {
  to.push_back(unary("softmax", "RxC", {{4096, 8192}, {4096, 1024}}, [](Var x) { return softmax(x); }));
  to.back().forward_shapes = {{4096, 32768}};
  to.push_back(unary("softmax+causal", "BxTxT", {{48, 1024, 1024}},
                     [](Var x) { return softmax(x, {.scale = 0.125f, .causal = true}); }));
  const std::vector<Shape> norms{kPlane, {1024, 768}};
  const auto like = [](const Var& v, const char* name) { return leaf(v.graph(), name, v.shape(), v.dtype()); };
  to.push_back(rows("layer_norm", norms, [=](Var x, Var w) { return layer_norm(x, w, like(w, "beta")); }));
  to.push_back(rows("layer_norm+residual", norms,
                    [=](Var x, Var w) { return add_layer_norm(x, like(x, "residual"), w, like(w, "beta"))[1]; }));
  to.push_back(rows("rms_norm", norms, [](Var x, Var w) { return rms_norm(x, w); }));
  to.push_back(
      rows("rms_norm+residual", norms, [=](Var x, Var w) { return add_rms_norm(x, like(x, "residual"), w)[1]; }));
}

CaseFamily product(std::string op, Matmul::Args a, std::vector<Shape> shapes, std::vector<Shape> forward_shapes) {
  return {.op = std::move(op),
          .dims = "MxNxK",
          .shapes = std::move(shapes),
          .forward_shapes = std::move(forward_shapes),
          .forward = [a](Graph& g, const Shape& s, DType d) {
            const auto m = s[0], n = s[1], k = s[2];
            return matmul(leaf(g, "a", a.transpose_a ? Shape{k, m} : Shape{m, k}, d),
                          leaf(g, "b", a.transpose_b ? Shape{n, k} : Shape{k, n}, d), a);
          }};
}

/// act(x W^T + bias) + residual, x (M, K), W (N, K).
CaseFamily affine(std::string op, Activation act, bool bias, bool residual, std::vector<Shape> shapes,
                  std::vector<Shape> forward_shapes = {}) {
  return {.op = std::move(op),
          .dims = "MxNxK",
          .shapes = std::move(shapes),
          .forward_shapes = std::move(forward_shapes),
          .forward = [=](Graph& g, const Shape& s, DType d) {
            const Var x = leaf(g, "x", {s[0], s[2]}, d), w = leaf(g, "w", {s[1], s[2]}, d);
            const Var b = bias ? leaf(g, "bias", {s[1]}, d) : Var(),
                      r = residual ? leaf(g, "residual", {s[0], s[1]}, d) : Var();
            return linear(x, w, b, {.activation = act}, r);
          }};
}

/// Two layers with biases and GELU between them.
Var two_layers(Graph& g, const Shape& s, DType d) {
  return mlp(leaf(g, "x", {s[0], s[1]}, d), leaf(g, "w1", {s[2], s[1]}, d), leaf(g, "b1", {s[2]}, d),
             leaf(g, "w2", {s[1], s[2]}, d), leaf(g, "b2", {s[1]}, d), Var(), {});
}

void products(Families& to) {
  const Shape mlp{1024, 3072, 768};
  to.push_back(product("matmul", {}, {mlp, {1024, 1024, 1024}}, {{4096, 4096, 4096}, {1, 16384, 8192}}));
  to.push_back(product("matmul+nt", {.transpose_b = true}, {}, {mlp, {256, 50304, 768}}));
  to.push_back(product("matmul+tn", {.transpose_a = true}, {}, {{3072, 768, 1024}}));
  to.push_back(affine("linear", Activation::none, false, false, {mlp}, {{256, 50304, 768}}));
  to.push_back(affine("linear+bias", Activation::none, true, false, {mlp}));
  to.push_back(affine("linear+bias_relu", Activation::relu, true, false, {mlp}));
  to.push_back(affine("linear+bias_gelu", Activation::gelu_tanh, true, false, {mlp}));
  to.push_back(affine("linear+bias_residual", Activation::none, true, true, {{1024, 768, 3072}}));
  to.push_back({.op = "mlp",
                .dims = "TxCxF",
                .shapes = {{1024, 768, 3072}},
                .forward_shapes = {},
                .forward = two_layers,
                .training_only = true});
}

/// Images (N, S, S, I), a kernel of `size` x `size` padded with zeros so that the images keep their size.
CaseFamily convolution(std::string op, int size, int stride, bool bias, std::vector<Shape> shapes) {
  return {.op = std::move(op),
          .dims = "NxSxIxO",
          .shapes = std::move(shapes),
          .forward_shapes = {},
          .forward = [=](Graph& g, const Shape& s, DType d) {
            const Var x = leaf(g, "x", {s[0], s[1], s[1], s[2]}, d), w = leaf(g, "w", {s[3], size, size, s[2]}, d);
            return conv2d(x, w, bias ? leaf(g, "bias", {s[3]}, d) : Var(), {.stride = stride, .pad = size / 2});
          }};
}

/// The layers of SimpleCNN (batch 128, with bias) and of ResNet-18 on 32 x 32 images (batch 32).
void convolutions(Families& to) {
  to.push_back(convolution("conv2d+bias", 3, 1, true, {{128, 32, 3, 64}, {128, 16, 64, 128}, {128, 8, 128, 256}}));
  to.push_back(
      convolution("conv2d", 3, 1, false, {{32, 32, 64, 64}, {32, 16, 128, 128}, {32, 8, 256, 256}, {32, 4, 512, 512}}));
  to.push_back(convolution("conv2d+stride2", 3, 2, false, {{32, 32, 64, 128}, {32, 16, 128, 256}, {32, 8, 256, 512}}));
  to.push_back(convolution("conv2d+1x1", 1, 2, false, {{32, 32, 64, 128}, {32, 16, 128, 256}, {32, 8, 256, 512}}));
  to.push_back(convolution("conv2d+pointwise", 1, 1, false,
                           {{8, 56, 64, 256}}));  // of ResNet-50 on 224 x 224 images, and its first layer
  to.push_back(convolution("conv2d+stem", 7, 2, false, {{8, 224, 3, 64}}));
}

CaseFamily int4_product(std::string op, Int4Linear::Args a, std::vector<Shape> shapes) {
  return {.op = std::move(op),
          .dims = "MxNxK",
          .gradient = false,
          .shapes = std::move(shapes),
          .forward_shapes = {},
          .forward = [a](Graph& g, const Shape& s, DType d) {
            const Var packed = g.input("packed", int4::packed_spec(s[1], s[2])),
                      scale = g.input("scale", int4::scale_spec(s[1], s[2], 32));
            return int4_linear(leaf(g, "x", {s[0], s[2]}, d), packed, scale, Var(), Var(), Var(), a);
          }};
}

/// (N, K), dense or INT4.
Matrix<Var> decoded_matrix(Graph& g, const std::string& name, std::int64_t n, std::int64_t k, DType d, bool int4) {
  if (!int4) return {g.input(name, {{n, k}, d}), {}, {}, {}};
  return {g.input(name, int4::packed_spec(n, k)), g.input(name + ".scale", int4::scale_spec(n, k, 64)), {}, {}};
}

/// One token of a decoder: the fused ops before attention, and the first half of an MLP.
void decoding(Families& to, bool int4) {
  const std::string suffix = int4 ? "+int4" : "";
  to.push_back({.op = "norm_qkv" + suffix,
                .dims = "CxHxGxD",
                .gradient = false,
                .shapes = {{4096, 32, 8, 128}, {2048, 32, 4, 64}},
                .forward_shapes = {},
                .forward = [int4](Graph& g, const Shape& s, DType d) {
                  const std::int64_t kv = s[2] * s[3];
                  const Matrix<Var> m[] = {decoded_matrix(g, "q", s[1] * s[3], s[0], d, int4),
                                           decoded_matrix(g, "k", kv, s[0], d, int4),
                                           decoded_matrix(g, "v", kv, s[0], d, int4)};
                  return norm_qkv(leaf(g, "x", {1, 1, s[0]}, d), leaf(g, "gamma", {s[0]}, d),
                                  g.input("table", {{8, s[3]}, DType::f32}), m, leaf(g, "k_cache", {1, 8, kv}, d),
                                  leaf(g, "v_cache", {1, 8, kv}, d), {.head_dim = s[3], .constant_weights = true});
                }});
  to.push_back({.op = "norm_swiglu" + suffix,
                .dims = "NxK",
                .gradient = false,
                .shapes = {{11008, 4096}, {5632, 2048}},
                .forward_shapes = {},
                .forward = [int4](Graph& g, const Shape& s, DType d) {
                  return norm_swiglu(leaf(g, "x", {1, 1, s[1]}, d), leaf(g, "gamma", {s[1]}, d),
                                     decoded_matrix(g, "gate", s[0], s[1], d, int4),
                                     decoded_matrix(g, "up", s[0], s[1], d, int4), {.constant_weights = true});
                }});
}

void quantised(Families& to) {
  decoding(to, false), decoding(to, true);
  to.push_back(int4_product("int4_linear", {.constant_weights = true},
                            {{1, 131072, 4096}, {1, 4096, 4096}, {8, 4096, 4096}, {64, 4096, 4096}}));
  to.push_back(int4_product("int4_linear+exact", {.exact = true, .constant_weights = true},
                            {{1, 131072, 4096}, {1, 4096, 4096}}));
  to.push_back({.op = "int4_embedding",
                .dims = "VxCxT",
                .gradient = false,
                .shapes = {{50304, 768, 131072}, {50304, 768, 1024}},
                .forward_shapes = {},
                .forward =
                    [](Graph& g, const Shape& s, DType d) {
                      const Var packed = g.input("packed", int4::packed_spec(s[0], s[1])),
                                scale = g.input("scale", int4::scale_spec(s[0], s[1], 32));
                      return int4_embedding(indices(g, "ids", {s[2]}), packed, scale, Var(), Var(), {.dtype = d});
                    },
                .index_dim = 0});
}

/// q, k, v packed in the output of the projection, (B, T, 3 H D).
Var self_attention(Graph& g, const Shape& s, DType d, bool causal) {
  const auto width = s[1] * s[3];
  const Var qkv = leaf(g, "qkv", {s[0], s[2], 3 * width}, d);
  return attention(g.slice(qkv, 0, width), g.slice(qkv, width, width), g.slice(qkv, 2 * width, width),
                   {.heads = static_cast<int>(s[1]), .causal = causal});
}

void sequences(Families& to) {
  const std::vector<Shape> heads{{4, 12, 1024, 64}};
  to.push_back({.op = "attention",
                .dims = "BxHxTxD",
                .shapes = heads,
                .forward_shapes = {},
                .forward = [](Graph& g, const Shape& s, DType d) { return self_attention(g, s, d, false); }});
  to.push_back({.op = "attention+causal",
                .dims = "BxHxTxD",
                .shapes = heads,
                .forward_shapes = {},
                .forward = [](Graph& g, const Shape& s, DType d) { return self_attention(g, s, d, true); }});
  to.push_back({.op = "attention+decode",
                .dims = "BxHxSxD",
                .gradient = false,
                .shapes = {{8, 12, 8192, 64}, {1, 12, 1024, 64}},
                .forward_shapes = {},
                .forward =
                    [](Graph& g, const Shape& s, DType d) {
                      const Shape one{s[0], 1, s[1] * s[3]}, cache{s[0], s[2], s[1] * s[3]};
                      return attention(leaf(g, "q", one, d), leaf(g, "k", cache, d), leaf(g, "v", cache, d),
                                       {.heads = static_cast<int>(s[1]), .cached = true});
                    },
                .position_dim = 2});
  to.push_back({.op = "kv_cache",
                .dims = "BxTxC",
                .gradient = false,
                .shapes = {{16, 1024, 2048}, {4, 256, 768}},
                .forward_shapes = {},
                .forward = [](Graph& g, const Shape& s, DType d) {
                  append_to_cache(leaf(g, "k_cache", s, d), leaf(g, "v_cache", s, d), leaf(g, "k", s, d),
                                  leaf(g, "v", s, d));
                  return Var();
                }});
  to.push_back({.op = "rope",
                .dims = "BxTxHxD",
                .shapes = {{8, 2048, 32, 128}, {1, 1024, 12, 64}},
                .forward_shapes = {},
                .forward = [](Graph& g, const Shape& s, DType d) {
                  return rope(leaf(g, "x", s, d), g.input("table", {{s[1], s[3]}, DType::f32}));
                }});
}

void vocabulary(Families& to) {
  to.push_back(
      {.op = "embedding",
       .dims = "VxCxT",
       .shapes = {{50304, 768, 65536}, {50304, 768, 1024}},
       .forward_shapes = {},
       .forward = [](Graph& g, const Shape& s,
                     DType d) { return embedding(leaf(g, "table", {s[0], s[1]}, d), indices(g, "ids", {s[2]})); },
       .index_dim = 0});
  to.push_back(
      {.op = "cross_entropy",
       .dims = "TxV",
       .shapes = {{2048, 50304}},
       .forward_shapes = {},
       .forward = [](Graph& g, const Shape& s,
                     DType d) { return cross_entropy(leaf(g, "logits", s, d), indices(g, "targets", {s[0]}))[0]; },
       .index_dim = 1});
  to.push_back({.op = "cross_entropy+smoothing",
                .dims = "TxV",
                .shapes = {{8192, 1000}, {128, 10}},
                .forward_shapes = {},
                .forward =
                    [](Graph& g, const Shape& s, DType d) {
                      return cross_entropy(leaf(g, "logits", s, d), indices(g, "targets", {s[0]}),
                                           {.label_smoothing = 0.1f})[0];
                    },
                .index_dim = 1});
  to.push_back({.op = "argmax",
                .dims = "RxV",
                .gradient = false,
                .shapes = {{512, 128256}, {1, 32000}},
                .forward_shapes = {},
                .forward = [](Graph& g, const Shape& s, DType d) {
                  const Var ids = g.input("ids", {{s[0]}, DType::i32});
                  argmax_into(ids, leaf(g, "logits", s, d));
                  return ids;
                }});
  to.push_back({.op = "top1",
                .dims = "TxV",
                .gradient = false,
                .shapes = {{8192, 1000}},
                .forward_shapes = {},
                .forward = [](Graph& g, const Shape& s,
                              DType d) { return top1(leaf(g, "logits", s, d), indices(g, "targets", {s[0]})); },
                .index_dim = 1});
  to.push_back({.op = "lm_head_loss",
                .dims = "TxVxC",
                .shapes = {{256, 50304, 768}},
                .forward_shapes = {},
                .forward =
                    [](Graph& g, const Shape& s, DType d) {
                      return lm_head_loss(leaf(g, "h", {s[0], s[2]}, d), leaf(g, "w", {s[1], s[2]}, d),
                                          indices(g, "targets", {s[0]}))[0];
                    },
                .index_dim = 1});
  to.push_back({.op = "lm_head_gradient",
                .dims = "TxVxC",
                .shapes = {{256, 50304, 768}},
                .forward_shapes = {},
                .forward =
                    [](Graph& g, const Shape& s, DType d) {
                      return lm_head_gradient(leaf(g, "h", {s[0], s[2]}, d), leaf(g, "w", {s[1], s[2]}, d),
                                              indices(g, "targets", {s[0]}))[0];
                    },
                .index_dim = 1,
                .training_only = true});
}

/// Activations of SimpleCNN at batch 128, and those of ResNet-18 on small images.
void images(Families& to) {
  const std::vector<Shape> layers{{128, 32, 32, 64}, {128, 16, 16, 128}, {128, 8, 8, 256}};
  const auto parameter = [](const Var& x, const char* name) { return leaf(x.graph(), name, {x[-1]}, DType::f32); };
  to.push_back(unary("batch_norm", "NxHxWxC", layers, [parameter](Var x) {
    return batch_norm(x, parameter(x, "weight"), parameter(x, "bias"), Var(), Var());
  }));
  to.push_back(unary("batch_norm+relu", "NxHxWxC", layers, [parameter](Var x) {
    return batch_norm(x, parameter(x, "weight"), parameter(x, "bias"), Var(), Var(), {.relu = true});
  }));
  std::vector<Shape> residual = layers;
  residual.push_back({32, 4, 4, 512});
  to.push_back(binary("batch_norm+residual_relu", "NxHxWxC", residual, [parameter](Var x, Var r) {
    return batch_norm(x, parameter(x, "weight"), parameter(x, "bias"), Var(), Var(), {.relu = true}, r);
  }));
  to.push_back(unary("max_pool2d", "NxHxWxC", layers, [](Var x) { return max_pool2d(x); }));
  to.push_back(unary("max_pool2d+overlap", "NxHxWxC", {{32, 112, 112, 64}},
                     [](Var x) { return max_pool2d(x, {.kernel = 3, .stride = 2, .pad = 1}); }));
  to.push_back(unary("avg_pool2d", "NxHxWxC", layers, [](Var x) { return avg_pool2d(x); }));
  to.push_back(unary("adaptive_avg_pool2d", "NxHxWxC", {{128, 8, 8, 512}, {64, 7, 7, 2048}},
                     [](Var x) { return adaptive_avg_pool2d(x); }));
}

void optimizer(Families& to) {
  to.push_back(
      {.op = "sgd",
       .dims = "N",
       .gradient = false,
       .shapes = {kVector, {589824}},
       .forward_shapes = {},
       .forward = [](Graph& g, const Shape& s, DType d) {
         record_sgd(
             g, std::vector<SgdTensor<Var>>{{leaf(g, "p", s, d), leaf(g, "p.grad", s, d), leaf(g, "m", s, DType::f32)}},
             {.momentum = 0.9f, .nesterov = true, .weight_decay = 5e-4f});
         return Var();
       }});
  to.push_back({.op = "adamw",
                .dims = "N",
                .gradient = false,
                .shapes = {kVector, {589824}},
                .forward_shapes = {},
                .forward =
                    [](Graph& g, const Shape& s, DType d) {
                      const std::vector<AdamWTensor<Var>> tensors{{.value = leaf(g, "p", s, d),
                                                                   .gradient = leaf(g, "p.grad", s, d),
                                                                   .m = leaf(g, "m", s, DType::f32),
                                                                   .v = leaf(g, "v", s, DType::f32)}};
                      record_adamw(g, tensors, {});
                      return Var();
                    },
                .positive = true});
  // Around the norm that decides whether a step is skipped.
  to.push_back({.op = "loss_scale",
                .dims = "N",
                .gradient = false,
                .shapes = {{589824}},
                .forward_shapes = {},
                .forward =
                    [](Graph& g, const Shape& s, DType d) {
                      const std::vector<Var> gradients{leaf(g, "p.grad", s, d)};
                      const Var scale = g.input("scale", LossScale::kScale),
                                counts = g.input("counts", LossScale::kCounts);
                      record_loss_scale(g, scale, counts, {}, [&] { record_grad_norm(g, gradients, {}); });
                      return Var();
                    },
                .index_dim = 0,
                .positive = true});
  to.push_back({.op = "grad_norm",
                .dims = "N",
                .gradient = false,
                .shapes = {{67108864}, {589824}},
                .forward_shapes = {},
                .forward = [](Graph& g, const Shape& s, DType d) {
                  record_grad_norm(g, std::vector<Var>{leaf(g, "gradient", s, d)}, {});
                  return Var();
                }});
}

}  // namespace

const std::vector<CaseFamily>& case_families() {
  static const Families all = [] {
    Families list;
    for (const auto add_group : {element_wise, raw_element_wise, row_wise, products, convolutions, quantised, sequences,
                                 images, vocabulary, optimizer})
      add_group(list);
    return list;
  }();
  return all;
}

}  // namespace hpcdl::lab
