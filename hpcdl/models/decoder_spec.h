#pragma once
// A decoder as data: the parts of its blocks, and the names of its parameters. Sizes are in io::ModelConfig.

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>

#include "hpcdl/nn/linear.h"

namespace hpcdl::models {

/// The function of a module in a block. C: width, D: head_dim, H and K: numbers of query and key/value heads, F: ffn.
enum class BlockPart : std::uint8_t {
  attention_norm,       // before q, k and v
  q,                    // C to H*D
  k,                    // C to K*D
  v,                    // C to K*D
  qkv,                  // q, k and v in one matrix, in this order
  q_norm,               // RMSNorm over D of each head of q, before its rotation
  k_norm,               // the same for k
  o,                    // H*D to C, added to the residual stream
  attention_post_norm,  // of what o adds
  mlp_norm,             // before the MLP
  up,                   // C to F; without a gate the activation follows
  gate,                 // C to F: down(activation(gate(x)) * up(x))
  gate_up,              // gate and up in one matrix, in this order
  down,                 // F to C, added to the residual stream
  router,               // C to the number of experts: their scores. In place of up, gate and down
  mlp_post_norm,        // of what down adds
};

struct DecoderSpec {
  struct Module {
    BlockPart part;
    std::string_view name;  // relative to its block
  };

  // Names in Hugging Face files. Files of the model without its head lack the prefix.
  std::string_view prefix = {}, tokens = {}, positions = {}, layers = {}, last_norm = {};
  std::string_view head = "lm_head";
  std::span<const Module> block = {};  // the modules of a block, in the order of its parameters
  std::string_view experts = {};       // the folder of the experts' names, which a number and one of these follow
  std::string_view expert_gate = "gate_proj", expert_up = "up_proj", expert_down = "down_proj";
  bool layer_norm = false;        // LayerNorm with biases; else RMSNorm
  float norm_offset = 0;          // added to the weights of RMSNorm
  bool scaled_embedding = false;  // token embeddings are multiplied by the square root of the width
  bool local_angles = false;      // sliding layers have rotary angles of their own base
  nn::Layout layout = nn::Layout::out_in;
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  std::span<const std::string_view> not_parameters = {};  // suffixes of tensors in files that no layer reads

  bool has(BlockPart part) const { return std::ranges::find(block, part, &Module::part) != block.end(); }
  bool gated() const { return has(BlockPart::gate) || has(BlockPart::gate_up) || !experts.empty(); }
  /// No learned positions: q and k are rotated.
  bool rotary() const { return positions.empty(); }
  /// Whether a tensor of a file never belongs to the model, for any config.json.
  bool is_no_parameter(std::string_view name) const {
    return std::ranges::any_of(not_parameters, [&](auto end) { return name.ends_with(end); });
  }
};

}  // namespace hpcdl::models
