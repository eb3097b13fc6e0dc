#include "hpcdl/quant/codecs.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"

namespace hpcdl::quant {
namespace {

constexpr std::string_view kPrefix = "hpcdl_";  // of codecs in config.json

constexpr const nn::Codec* kCodecs[] = {
#define HPCDL_ROW(name) &name##_codec,
    HPCDL_CODECS(HPCDL_ROW)
#undef HPCDL_ROW
};

/// "32, 64 or 128".
std::string listed(std::span<const std::int64_t> numbers, std::string_view last) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size(); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 < numbers.size() ? ", " : fmt::format(" {} ", last), numbers[i]);
  return text;
}

bool has_group(const nn::Codec& c, std::int64_t group) { return std::ranges::find(c.groups, group) != c.groups.end(); }

/// The elements of a matrix whose first part has this many bytes.
std::int64_t in_first_part(const nn::Codec& c, std::int64_t bytes) {
  if (!c.groups.empty()) return 8 * bytes / c.bits;
  return bytes / c.specs(1, c.block, {})[0].bytes() * c.block;
}

/// Whether the scales of a codec can be quantised: its matrices then have other parts.
bool has_nested(const nn::Codec& c) {
  const std::int64_t size = 4 * c.block;
  return c.groups.empty() && c.specs(1, size, {.nested = true}) != c.specs(1, size, {});
}

}  // namespace

std::span<const nn::Codec* const> codecs() { return kCodecs; }

const nn::Codec* find_codec(std::string_view name) {
  const auto found = std::ranges::find(kCodecs, name, &nn::Codec::name);
  return found == std::end(kCodecs) ? nullptr : *found;
}

std::string misfit(const nn::Codec& c, std::int64_t in, const nn::CodecOptions& o) {
  if (o.nested && !has_nested(c))
    fail_usage("quant", "scales of {} cannot be quantised, only those of nf4 and fp4", c.name);
  if (c.groups.empty())
    return in > 0 && in % c.block == 0
               ? ""
               : fmt::format(
                     "{} needs a multiple of {} inputs, it has K = {}: keep this tensor as it is "
                     "(quantize --keep-odd)",
                     c.name, c.block, in);
  require(has_group(c, o.group), "quant", "group size must be {}, got {}", listed(c.groups, "or"), o.group);
  if (in > 0 && in % o.group == 0) return {};
  std::vector<std::int64_t> fit;
  std::ranges::copy_if(c.groups, std::back_inserter(fit), [&](auto g) { return in > 0 && in % g == 0; });
  return fmt::format("group size {} does not divide its K = {} inputs; {}", o.group, in,
                     fit.empty() ? fmt::format("neither do {}: keep this tensor as it is (quantize --keep-odd)",
                                               listed(c.groups, "and"))
                                 : fmt::format("choose a group size that does: {}", fmt::join(fit, ", ")));
}

std::int64_t row_unit(const nn::Codec& c, const nn::CodecOptions& o) { return c.groups.empty() ? c.block : o.group; }

void require_fit(const nn::Codec& codec, std::string_view name, std::int64_t in, const nn::CodecOptions& options) {
  const auto text = misfit(codec, in, options);
  require(text.empty(), "quant", "{}: {}", name, text);
}

std::int64_t parameters_in(std::string_view name, const Spec& spec) {
  for (const auto* c : kCodecs)
    for (const auto& part : c->names)
      if (!part.in_files.empty() && name.ends_with(part.in_files))
        return &part == c->names.data() ? in_first_part(*c, spec.bytes()) : 0;
  return spec.size();
}

io::QuantConfig parse_config(const io::Json& json, const std::string& where) {
  const io::JsonObject o(json, where);
  const auto method = o.need<std::string>("quant_method");  // first: methods of others have other keys
  const auto* codec = method.starts_with(kPrefix) ? find_codec(method.substr(kPrefix.size())) : nullptr;
  if (!codec) {
    std::string known;
    for (const auto* c : kCodecs) known += fmt::format("{}{}{}", known.empty() ? "" : ", ", kPrefix, c->name);
    fail("io", "{}: expected quant_method {}, found {}: start from the original", where, known, io::shown(method));
  }
  const auto bits = o.need<std::int64_t>("bits");
  require(bits == codec->bits, "io", "{}: expected {} bits, found {}", where, codec->bits, bits);
  if (codec->groups.empty()) {
    const nn::CodecOptions options{.nested = o.get_or("nested", false)};
    require(!options.nested || has_nested(*codec), "io", "{}: nested: expected false for {}, found true", where,
            codec->name);
    return {codec, options};
  }
  const auto group = o.need<std::int64_t>("group_size");
  require(has_group(*codec, group), "io", "{}: group_size: expected {}, found {}", where, listed(codec->groups, "or"),
          group);
  return {codec, {.group = group, .symmetric = o.get_or("symmetric", true)}};
}

io::Json make_config(const io::QuantConfig& c) {
  io::Json json = {{"quant_method", fmt::format("{}{}", kPrefix, c.codec->name)}, {"bits", c.codec->bits}};
  if (c.codec->groups.empty()) {
    json["nested"] = c.options.nested;
  } else {
    json["group_size"] = c.options.group;
    json["symmetric"] = c.options.symmetric;
  }
  return json;
}

}  // namespace hpcdl::quant
