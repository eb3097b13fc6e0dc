#include "cli/inspect_gguf.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/verb.h"
#include "hpcdl/core/convert.h"
#include "hpcdl/core/units.h"
#include "hpcdl/io/gguf/decode.h"
#include "hpcdl/io/gguf/file.h"

namespace hpcdl::cli {

namespace {

void check_gguf(const io::GgufFile& file) {
  constexpr std::int64_t kBlocks = 1024;  // at a time
  for (const auto* t : file.tensors()) {
    const auto& type = io::info_of(t->type);
    std::vector<float> values(static_cast<std::size_t>(kBlocks * type.elements));
    const auto blocks = t->bytes / type.bytes;
    for (std::int64_t i = 0; i < blocks; i += kBlocks) {
      const auto count = std::min(kBlocks, blocks - i);
      io::decode_blocks(t->type, file.data(*t) + i * type.bytes, count, values.data());
      const auto bad = count_non_finite(View(values.data(), {{count * type.elements}, DType::f32}));
      require(bad == 0, "inspect", "{}: {} of the elements {} to {} of \"{}\" are NaN or infinite",
              file.path().string(), bad, i * type.elements, (i + count) * type.elements - 1, t->name);
    }
  }
}

/// Long texts and lists are described, so that a vocabulary is one line.
Json json_of_value(const io::GgufMetadata& m, const io::GgufMetadata::Entry& e) {
  if (e.value.list) return io::GgufMetadata::describe(e.value);
  switch (e.value.kind) {
    case io::GgufKind::text: return m.need<std::string_view>(e.key);
    case io::GgufKind::boolean: return m.need<bool>(e.key);
    case io::GgufKind::f32:
    case io::GgufKind::f64: return m.need<double>(e.key);
    default: return m.need<std::int64_t>(e.key);
  }
}

std::string file_of(const io::GgufFile& file, const io::GgufTensor& t) {
  const auto* at = file.data(t);
  for (const auto* f : file.files())
    if (at >= f->data() && at <= f->data() + f->size()) return f->path().filename().string();
  return {};
}

void print_as_json(const io::GgufFile& file, std::int64_t parameters, std::int64_t bytes) {
  Json out = {{"path", file.path().string()},
              {"parameters", parameters},
              {"bytes", bytes},
              {"metadata", Json::object()},
              {"tensors", Json::array()}};
  for (const auto& e : file.metadata().entries())
    out["metadata"][std::string(e.key)] = json_of_value(file.metadata(), e);
  for (const auto* t : file.tensors())
    out["tensors"].push_back({{"name", t->name},
                              {"dtype", io::info_of(t->type).name},
                              {"shape", std::vector<std::int64_t>(t->shape.begin(), t->shape.end())},
                              {"bytes", t->bytes},
                              {"offset", t->offset},
                              {"file", file_of(file, *t)}});
  print_json(out);
}

}  // namespace

int inspect_gguf(const std::filesystem::path& path, const GgufView& view) {
  const auto file = io::GgufFile::open(path);
  if (view.check) check_gguf(file);
  std::int64_t parameters = 0, bytes = 0;
  std::size_t width = 0;
  const auto tensors = file.tensors();
  for (const auto* t : tensors) {
    parameters += t->shape.size(), bytes += t->bytes;
    width = std::max(width, t->name.size());
  }
  if (view.json) return print_as_json(file, parameters, bytes), exit_code::kDone;
  std::string text;
  for (const auto* t : tensors)
    text += fmt::format("{:<{}}  {:<8} {:>10}  ({})\n", t->name, width, io::info_of(t->type).name,
                        format_bytes(static_cast<double>(t->bytes)), fmt::join(t->shape, ", "));
  for (const auto& e : file.metadata().entries())
    text += fmt::format("{} = {}\n", e.key, io::GgufMetadata::describe(e.value));
  text += fmt::format("{} tensors in {} file(s), {} parameters, {}, {:.2f} bits a parameter\n", tensors.size(),
                      file.files().size(), format_count(static_cast<double>(parameters)),
                      format_bytes(static_cast<double>(bytes)),
                      8 * static_cast<double>(bytes) / static_cast<double>(std::max<std::int64_t>(parameters, 1)));
  print_text(text);
  return exit_code::kDone;
}

}  // namespace hpcdl::cli
