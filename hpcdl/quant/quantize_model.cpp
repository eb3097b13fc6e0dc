#include "hpcdl/quant/quantize_model.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "hpcdl/buffer.h"
#include "hpcdl/core/error.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/json.h"
#include "hpcdl/io/safetensors_writer.h"
#include "hpcdl/quant/compensate.h"
#include "hpcdl/quant/staged_folder.h"

namespace hpcdl::quant {
namespace {

namespace fs = io::fs;

struct Task {
  const io::TensorInfo* tensor;
  const io::SafeTensors* shard;
  Treatment treatment;
  const nn::Codec* codec = nullptr;  // of a matrix that is quantised
  nn::CodecOptions options = {};
  bool odd = false;  // stays unchanged, because the group does not divide its inputs
  std::int64_t n() const { return tensor->spec[treatment == Treatment::conv1d ? 1 : 0]; }
  std::int64_t k() const { return tensor->spec[treatment == Treatment::conv1d ? 0 : 1]; }
};

bool quantized(Treatment t) { return t == Treatment::matrix || t == Treatment::conv1d; }

std::vector<Task> plan(const io::TensorFolder& files, const QuantizeModelOptions& options) {
  std::vector<Task> tasks;
  bool kept = false;
  for (std::size_t i = 0; i < files.tensors().size(); ++i) {
    const auto& t = files.tensors()[i];
    const auto treatment = options.treatment(t.name, t.spec);
    if (treatment == Treatment::leave_out) continue;
    auto& task = tasks.emplace_back(Task{&t, &files.shard_of(i), treatment});
    if (!quantized(treatment)) continue;
    const auto* other = options.other_codec ? options.other_codec(t.name) : nullptr;
    task.codec = other ? other : options.codec;
    if (task.codec == options.codec) task.options = options.options;
    if (options.keep && options.keep(t.name)) task.treatment = Treatment::copy, kept = true;
    else if (!options.keep_odd) require_fit(*task.codec, t.name, task.k(), task.options);
    else if (!misfit(*task.codec, task.k(), task.options).empty()) task.treatment = Treatment::copy, task.odd = true;
  }
  require(!options.keep || kept, "quant", "{}: no matrix has a name that is to be kept: hpcdl inspect lists the names",
          files.path().string());
  require((!options.keep_odd && !options.keep) ||
              std::any_of(tasks.begin(), tasks.end(), [](const Task& t) { return quantized(t.treatment); }),
          "quant", "{}: nothing to quantise: no matrix has a number of inputs that {} divides", files.path().string(),
          row_unit(*options.codec, options.options));
  if (options.calibration)
    std::ranges::stable_sort(tasks, {}, [&](const Task& t) { return options.calibration->place(t.tensor->name); });
  return tasks;
}

std::string name_in_files(const std::string& name, const nn::Codec& codec, std::size_t part) {
  return name + std::string(codec.names[part].in_files);
}

std::vector<io::NamedSpec> outputs(const std::vector<Task>& tasks) {
  std::vector<io::NamedSpec> specs;
  for (const auto& t : tasks) {
    const std::string& name = t.tensor->name;
    if (!quantized(t.treatment)) {
      specs.push_back({name, t.tensor->spec});
      continue;
    }
    const auto parts = t.codec->specs(t.n(), t.k(), t.options);
    for (std::size_t i = 0; i < parts.size(); ++i)
      if (parts[i]) specs.push_back({name_in_files(name, *t.codec, i), parts[i]});
  }
  return specs;
}

/// The parts of a matrix of which the calibration knows the inputs.
Compensation::Parts calibrated(Pool& pool, const Compensation& codec, const MatrixSource& source, const Task& task,
                               const QuantizeModelOptions& o, nn::RoundingError& error) {
  const auto& name = task.tensor->name;
  auto made =
      quantize_compensated(pool, codec, source, o.calibration->moments(name), task.options, o.activation_scales, error);
  o.calibration->replaced(name, made.values.tensor);
  return std::move(made.parts);
}

LayerReport write_one(Pool& pool, const Task& task, const QuantizeModelOptions& o, io::TensorFolderWriter& writer) {
  const std::string& name = task.tensor->name;
  const Spec& spec = task.tensor->spec;
  const View view = task.shard->view(*task.tensor);
  if (!quantized(task.treatment)) {
    writer.write(name, view);
    return {.name = name,
            .shape = spec.shape,
            .odd = task.odd,
            .bits_per_weight = 8.0 * dtype_bytes(spec.dtype),
            .bytes = spec.bytes()};
  }
  nn::RoundingError error;
  const bool transposed = task.treatment == Treatment::conv1d;
  const auto* compensation = o.calibration && o.calibration->place(name) >= 0 ? compensation_of(*task.codec) : nullptr;
  const auto parts = compensation ? calibrated(pool, *compensation, {view, transposed, name}, task, o, error)
                                  : task.codec->quantize(pool, view, task.options, transposed, error, name);
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].tensor) continue;
    writer.write(name_in_files(name, *task.codec, i), parts[i].tensor);
    bytes += parts[i].tensor.bytes();
  }
  return {.name = name,
          .shape = {task.n(), task.k()},
          .quantized = true,
          .codec = task.codec,
          .compensated = compensation != nullptr,
          .bits_per_weight = 8.0 * static_cast<double>(bytes) / static_cast<double>(spec.size()),
          .relative_rms = error.relative_rms(),
          .largest = error.largest,
          .bytes = bytes};
}

void write_companions(const fs::path& from, const fs::path& to, const QuantizeModelOptions& o,
                      const ModelReport& report) {
  io::Json config = io::read_json(from / "config.json");
  auto& of_matrices = config["quantization_config"] = make_config({o.codec, o.options});
  std::set<std::string_view> others;
  for (const auto& l : report.layers)
    if (l.codec && l.codec != o.codec) others.insert(l.codec->name);
  if (!others.empty()) of_matrices["others"] = others;
  io::write_file_atomic(to / "config.json", config.dump(2) + "\n");
  copy_companions(from, to);
}

}  // namespace

ModelReport quantize_model(Pool& pool, const fs::path& from, const fs::path& to, const QuantizeModelOptions& options) {
  std::error_code ignored;
  require(!fs::equivalent(from, to, ignored), "quant", "{}: source and target are the same folder", to.string());
  const auto files = io::TensorFolder::open(from);
  const auto tasks = plan(files, options);
  std::int64_t total = 0, done = 0;
  for (const auto& t : tasks) total += t.tensor->spec.bytes();

  ModelReport report{.codec = options.codec, .options = options.options};
  StagedFolder folder(to);
  io::TensorFolderWriter writer(folder.path(), outputs(tasks));
  if (options.progress) options.progress("", 0, total);
  for (const auto& t : tasks) {
    report.layers.push_back(write_one(pool, t, options, writer));
    t.shard->file().drop(t.tensor->offset, t.tensor->spec.bytes());
    done += t.tensor->spec.bytes();
    if (options.progress) options.progress(t.tensor->name, done, total);
  }
  writer.commit();
  write_companions(from, folder.path(), options, report);
  folder.commit();
  return report;
}

}  // namespace hpcdl::quant
