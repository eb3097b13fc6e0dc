#include "hpcdl/models/shard.h"

#include "hpcdl/core/error.h"

namespace hpcdl::models {
namespace {

void check_whole(std::string_view what, std::int64_t heads, std::int64_t ranks) {
  if (heads % ranks == 0) return;
  std::string fits;
  for (std::int64_t n = 1; n <= heads; ++n)
    if (heads % n == 0) fits += fmt::format("{}{}", fits.empty() ? "" : ", ", n);
  fail_usage("shard", "{} {} are not divisible by tp {}, and a head cannot be split; tp may be {}", heads, what, ranks,
             fits);
}

}  // namespace

void check_heads(std::int64_t heads, std::int64_t kv_heads, std::int64_t ranks) {
  check_whole("heads", heads, ranks);
  check_whole("heads of keys and values", kv_heads, ranks);
}

void shard(Gpt& model, const parallel::TensorParallel& tp) {
  tp.split_vocabulary(model.wte);
  if (model.lm_head.weight.spec) tp.split_vocabulary(model.lm_head);
  tp.in_front(model.ln_f);
  for (auto& b : model.h) {
    check_heads(b.attn.heads, 0, tp.size());
    b.attn.heads /= tp.size();
    tp.in_front(b.ln_1);
    tp.split_columns(b.attn.c_attn, 3);
    tp.split_rows(b.attn.c_proj);
    tp.in_front(b.ln_2);
    tp.split_columns(b.mlp.c_fc);
    tp.split_rows(b.mlp.c_proj);
  }
}

void shard(Llama& model, const parallel::TensorParallel& tp) {
  tp.split_vocabulary(model.embed_tokens);
  if (model.lm_head.weight.spec) tp.split_vocabulary(model.lm_head);
  tp.in_front(model.last_norm);
  for (auto& b : model.layers) {
    auto& a = b.self_attn;
    check_heads(a.heads, a.kv_heads, tp.size());
    a.heads /= tp.size(), a.kv_heads /= tp.size();
    tp.in_front(b.input_layernorm);
    for (auto* l : {&a.q_proj, &a.k_proj, &a.v_proj}) tp.split_columns(*l);
    tp.split_rows(a.o_proj);
    tp.in_front(b.post_attention_layernorm);
    tp.split_columns(b.mlp.gate_proj);
    tp.split_columns(b.mlp.up_proj);
    tp.split_rows(b.mlp.down_proj);
  }
}

}  // namespace hpcdl::models
