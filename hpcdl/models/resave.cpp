#include "hpcdl/models/resave.h"

#include "hpcdl/buffer.h"
#include "hpcdl/core/convert.h"
#include "hpcdl/core/error.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/chat_template.h"
#include "hpcdl/io/gguf/file.h"
#include "hpcdl/io/model_folder.h"
#include "hpcdl/io/safetensors_writer.h"
#include "hpcdl/io/tokenizer.h"
#include "hpcdl/models/family.h"
#include "hpcdl/models/hf_config.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/models/packed_weights.h"
#include "hpcdl/quant/staged_folder.h"

namespace hpcdl::models {
namespace {

bool converts(DType d) { return d == DType::f32 || d == DType::bf16 || d == DType::f16; }

/// What is written: all tensors of a folder, or the parameters of a model that has to be decoded.
std::vector<io::NamedSpec> written_tensors(const WeightFiles& files, const io::ModelConfig& config, bool decoded,
                                           DType target) {
  std::vector<io::NamedSpec> specs;
  const auto add = [&](const std::string& name) {
    const auto stored = files.at(name).spec();
    specs.push_back({name, {stored.shape, target != DType::none && converts(stored.dtype) ? target : stored.dtype}});
  };
  if (!decoded) {
    for (const auto& name : files.names()) add(name);
    return specs;
  }
  const auto model = LanguageModel::create(config, std::nullopt, false);
  for (const auto& p : model.parameters()) add(p.name);
  return specs;
}

void write_tokenizer(const std::filesystem::path& from, const io::ModelConfig& config,
                     const std::filesystem::path& to) {
  if (!io::is_gguf(from)) {
    for (const char* name : quant::kCompanions)
      if (std::filesystem::exists(from / name)) std::filesystem::copy_file(from / name, to / name);
    return;
  }
  if (!io::has_tokenizer(from)) return;
  io::Tokenizer::load(from).save_folder(to, static_cast<int>(config.context));
  if (const auto chat = io::load_chat_template(from)) io::write_file_atomic(to / "chat_template.jinja", chat->source());
}

}  // namespace

Resaved resave(const std::filesystem::path& from, io::ModelConfig config, const std::filesystem::path& to,
               const ResaveOptions& options, Pool& pool) {
  const bool decoded = io::is_gguf(from) || pack_config_of(from);
  const auto files = WeightFiles::open(from, config, row_of(config.family).decoder(config));
  const auto specs = written_tensors(*files, config, decoded, options.dtype);
  Resaved report{.tensors = std::ssize(specs)};
  for (const auto& s : specs) report.bytes += s.spec.bytes();
  std::filesystem::create_directories(to);
  io::TensorFolderWriter writer(to, specs, options.shard_bytes);
  for (const auto& s : specs) {
    const View stored = files->at(s.name);
    if (stored && stored.spec() == s.spec) {
      writer.write(s.name, stored);
      continue;
    }
    const OwnedTensor values(s.spec);
    files->read(s.name, values.tensor, &pool);
    require(count_non_finite(values.tensor) == (stored ? count_non_finite(stored) : 0), "convert",
            "{}: {} has numbers that {} cannot represent: choose bf16, which has the range of f32", from.string(),
            s.name, dtype_name(s.spec.dtype));
    writer.write(s.name, values.tensor);
  }
  writer.commit();
  if (options.dtype != DType::none) config.dtype = options.dtype;
  report.dtype = config.dtype;
  write_hf_config(to, config);
  write_tokenizer(from, config, to);
  return report;
}

}  // namespace hpcdl::models
