#include "hpcdl/models/gguf/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace hpcdl::models {
namespace {

using enum BlockPart;

constexpr std::pair<BlockPart, std::string_view> kParts[] = {
    {attention_norm, "attn_norm"},
    {q, "attn_q"},
    {k, "attn_k"},
    {v, "attn_v"},
    {qkv, "attn_qkv"},
    {q_norm, "attn_q_norm"},
    {k_norm, "attn_k_norm"},
    {o, "attn_output"},
    {attention_post_norm, "post_attention_norm"},
    {mlp_norm, "ffn_norm"},
    {up, "ffn_up"},
    {gate, "ffn_gate"},
    {gate_up, "ffn_up"},
    {down, "ffn_down"},
    {router, "ffn_gate_inp"},
    {mlp_post_norm, "post_ffw_norm"},
};

/// Families whose files differ from transformers' in the order of rows have these architectures.
constexpr std::pair<std::string_view, io::Family> kArchitectures[] = {
    {"llama", io::Family::llama},   {"llama", io::Family::mistral},      {"llama", io::Family::mixtral},
    {"qwen2", io::Family::qwen2},   {"qwen3", io::Family::qwen3},        {"qwen3moe", io::Family::qwen3_moe},
    {"gemma2", io::Family::gemma2}, {"gemma3", io::Family::gemma3_text}, {"phi3", io::Family::phi3},
    {"gpt2", io::Family::gpt2},
};

/// llama.cpp rotates neighbouring elements of a head for this architecture, and its files hold rows in that order.
bool alternates(io::Family family) { return architecture_of(family) == "llama"; }

bool is_norm(BlockPart part) {
  return part == attention_norm || part == attention_post_norm || part == mlp_norm || part == mlp_post_norm ||
         part == q_norm || part == k_norm;
}

/// Cuts `prefix` off; false if the text does not begin with it.
bool cut(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

/// Cuts a number and the dot behind it off; empty if there is none.
std::string_view cut_number(std::string_view& text) {
  const auto end = text.find_first_not_of("0123456789");
  if (end == 0 || end == std::string_view::npos || text[end] != '.') return {};
  const auto number = text.substr(0, end);
  text.remove_prefix(end + 1);
  return number;
}

constexpr std::string_view kSuffixes[] = {".weight", ".bias"};

}  // namespace

std::string_view family_of_architecture(std::string_view architecture) {
  for (const auto& [name, family] : kArchitectures)
    if (name == architecture) return io::enum_name(family);
  return {};
}

std::string_view architecture_of(io::Family family) {
  for (const auto& [name, f] : kArchitectures)
    if (f == family) return name;
  return {};
}

std::optional<GgufPlace> GgufNames::place_of(std::string_view name) const {
  const auto& d = decoder_;
  if (name == fmt::format("{}.weight", d.head)) return GgufPlace{.tensor = "output.weight"};
  if (!cut(name, d.prefix)) return std::nullopt;
  if (name == fmt::format("{}.weight", d.tokens)) return GgufPlace{.tensor = "token_embd.weight"};
  if (!d.rotary() && name == fmt::format("{}.weight", d.positions)) return GgufPlace{.tensor = "position_embd.weight"};
  for (const auto suffix : kSuffixes)
    if (name == fmt::format("{}{}", d.last_norm, suffix))
      return GgufPlace{.tensor = fmt::format("output_norm{}", suffix), .added = d.norm_offset};
  if (!cut(name, fmt::format("{}.", d.layers))) return std::nullopt;
  const auto layer = cut_number(name);
  if (layer.empty()) return std::nullopt;
  const auto place = in_layer(layer, name);
  return place ? place : of_expert(layer, name);
}

std::optional<GgufPlace> GgufNames::in_layer(std::string_view layer, std::string_view rest) const {
  for (const auto& module : decoder_.block)
    for (const auto suffix : kSuffixes) {
      if (rest != fmt::format("{}{}", module.name, suffix)) continue;
      const auto* part = std::ranges::find(kParts, module.part, &std::pair<BlockPart, std::string_view>::first);
      GgufPlace place{.tensor = fmt::format("blk.{}.{}{}", layer, part->second, suffix)};
      if (is_norm(module.part)) place.added = suffix == ".weight" ? decoder_.norm_offset : 0;
      else place.transposed = suffix == ".weight" && decoder_.layout == nn::Layout::in_out;
      if (alternates(config_.family))
        place.heads = module.part == q ? config_.heads : module.part == k ? config_.kv_heads : 0;
      return place;
    }
  return std::nullopt;
}

std::optional<GgufPlace> GgufNames::of_expert(std::string_view layer, std::string_view rest) const {
  const auto& d = decoder_;
  if (d.experts.empty() || !cut(rest, fmt::format("{}.", d.experts))) return std::nullopt;
  const auto number = cut_number(rest);
  std::int64_t expert = -1;
  if (std::from_chars(number.data(), number.data() + number.size(), expert).ec != std::errc()) return std::nullopt;
  for (const auto& [ours, theirs] : {std::pair{d.expert_gate, "ffn_gate_exps"}, std::pair{d.expert_up, "ffn_up_exps"},
                                     std::pair{d.expert_down, "ffn_down_exps"}})
    if (rest == fmt::format("{}.weight", ours))
      return GgufPlace{.tensor = fmt::format("blk.{}.{}.weight", layer, theirs), .expert = expert};
  return std::nullopt;
}

std::string GgufNames::name_of(std::string_view tensor) const {
  const auto& d = decoder_;
  if (tensor == "output.weight") return fmt::format("{}.weight", d.head);
  if (tensor == "token_embd.weight") return fmt::format("{}{}.weight", d.prefix, d.tokens);
  if (tensor == "position_embd.weight" && !d.rotary()) return fmt::format("{}{}.weight", d.prefix, d.positions);
  for (const auto suffix : kSuffixes)
    if (tensor == fmt::format("output_norm{}", suffix)) return fmt::format("{}{}{}", d.prefix, d.last_norm, suffix);
  auto rest = tensor;
  const auto layer = cut(rest, "blk.") ? cut_number(rest) : std::string_view();
  if (layer.empty()) return std::string(tensor);
  const auto named = [&](std::string_view end) { return fmt::format("{}{}.{}.{}", d.prefix, d.layers, layer, end); };
  for (const auto& module : d.block)
    for (const auto suffix : kSuffixes) {
      const auto* part = std::ranges::find(kParts, module.part, &std::pair<BlockPart, std::string_view>::first);
      if (rest == fmt::format("{}{}", part->second, suffix)) return named(fmt::format("{}{}", module.name, suffix));
    }
  for (const auto& [ours, theirs] : {std::pair{d.expert_gate, "ffn_gate_exps"}, std::pair{d.expert_up, "ffn_up_exps"},
                                     std::pair{d.expert_down, "ffn_down_exps"}})
    if (!d.experts.empty() && rest == fmt::format("{}.weight", theirs))
      return named(fmt::format("{}.0.{}.weight", d.experts, ours));
  return named(rest);
}

}  // namespace hpcdl::models
