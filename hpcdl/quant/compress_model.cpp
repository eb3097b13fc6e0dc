#include "hpcdl/quant/compress_model.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "hpcdl/buffer.h"
#include "hpcdl/core/convert.h"
#include "hpcdl/core/error.h"
#include "hpcdl/core/units.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/json.h"
#include "hpcdl/io/safetensors_writer.h"
#include "hpcdl/quant/factors.h"
#include "hpcdl/quant/float_rows.h"
#include "hpcdl/quant/staged_folder.h"
#include "hpcdl/quant/structures.h"

namespace hpcdl::quant {
namespace {

namespace fs = io::fs;

struct CompressTask {
  const io::TensorInfo* tensor;
  const io::SafeTensors* shard;
  std::optional<CompressibleLayer> layer = {};
  nn::Structure structure = {};

  std::int64_t out() const { return tensor->spec[layer->transposed ? 1 : 0]; }
  std::int64_t in() const { return tensor->spec[layer->transposed ? 0 : 1]; }
};

/// NAME.factor_in.weight and so on for NAME.weight.
std::string factor_name(const std::string& matrix, std::string_view factor) {
  constexpr std::string_view kEnd = "weight";
  return fmt::format("{}factor_{}.weight", std::string_view(matrix).substr(0, matrix.size() - kEnd.size()), factor);
}

std::vector<CompressTask> plan_compression(const io::TensorFolder& files, const CompressModelOptions& o) {
  std::vector<CompressTask> tasks;
  bool kept = false;
  std::size_t compressed = 0, candidates = 0;
  for (std::size_t i = 0; i < files.tensors().size(); ++i) {
    const auto& t = files.tensors()[i];
    if (o.leave_out && o.leave_out(t.name)) continue;
    auto& task = tasks.emplace_back(CompressTask{&t, &files.shard_of(i)});
    task.layer = o.layer(t.name, t.spec);
    candidates += task.layer.has_value();
    if (task.layer && o.keep && o.keep(t.name)) task.layer.reset(), kept = true;
    if (!task.layer) continue;
    task.structure = structure_for(o.method, task.out(), task.in(), o.ratio, o.blocks, t.name);
    ++compressed;
  }
  require(candidates > 0, "compress",
          "{}: nothing to compress: expected matrices of attention or MLP layers in F32, BF16 or F16, found none",
          files.path().string());
  require(!o.keep || kept, "compress", "{}: no matrix has a name that is to be kept: hpcdl inspect lists the names",
          files.path().string());
  require(compressed > 0, "compress", "{}: nothing to compress: --keep leaves all {} matrices as they are",
          files.path().string(), candidates);
  if (o.calibration)
    std::ranges::stable_sort(tasks, {}, [&](const CompressTask& t) { return o.calibration->place(t.tensor->name); });
  return tasks;
}

/// f(name, shape) for each factor, in the order input, scale, output.
void for_each_factor(const CompressTask& t, auto&& f) {
  const auto& s = t.structure;
  const auto B = s.blocks, r = s.rank, width = s.method == nn::Method::monarch ? B * r : r;
  const bool whole = s.method == nn::Method::svd;
  const auto& name = t.tensor->name;
  f(factor_name(name, "in"), whole ? Shape{r, t.in()} : Shape{B, width, t.in() / B});
  if (s.method == nn::Method::blast) f(factor_name(name, "scale"), Shape{r, B, B});
  f(factor_name(name, "out"), whole ? Shape{t.out(), r} : Shape{B, t.out() / B, width});
}

std::vector<io::NamedSpec> compressed_tensors(const std::vector<CompressTask>& tasks) {
  std::vector<io::NamedSpec> specs;
  for (const auto& t : tasks)
    if (!t.layer) specs.push_back({t.tensor->name, t.tensor->spec});
    else
      for_each_factor(t, [&](const std::string& name, const Shape& shape) {
        specs.push_back({name, {shape, t.tensor->spec.dtype}});
      });
  return specs;
}

double squared(const float* a, const float* b, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += std::pow(double{a[i]} - (b ? double{b[i]} : 0.0), 2);
  return sum;
}

/// Of the better of both orders of rows.
Factors best_factors(Pool& pool, const WeighedMatrix& w, nn::Structure& s, const View& values) {
  auto factors = factorise(pool, w, s);
  if (s.method != nn::Method::monarch) return factors;
  auto strided = s;
  strided.strided = true;
  auto others = factorise(pool, w, strided);
  const auto error = [&](const Factors& f, const nn::Structure& of) {
    return squared(values.ptr<float>(), expand(pool, f, of).tensor.ptr<float>(), values.size());
  };
  if (error(others, strided) >= error(factors, s)) return factors;
  s = strided;
  return others;
}

CompressedLayer compress_one(Pool& pool, CompressTask& task, const CompressModelOptions& o,
                             io::TensorFolderWriter& writer) {
  const auto& name = task.tensor->name;
  const FloatRows rows(task.shard->view(*task.tensor), task.layer->transposed, name);
  const OwnedTensor values({{rows.n(), rows.k()}, DType::f32});
  for_each_row(pool, rows, [&](std::int64_t r, const float* row) {
    std::copy_n(row, rows.k(), values.tensor.ptr<float>() + r * rows.k());
  });
  WeighedMatrix w{values.tensor.ptr<float>(), rows.n(), rows.k(), rows.k()};
  const bool weighed = o.calibration && o.calibration->place(name) >= 0;
  if (weighed) w.moments = o.calibration->moments(name).sums();
  Factors factors = best_factors(pool, w, task.structure, values.tensor);

  CompressedLayer layer{.name = name,
                        .out = rows.n(),
                        .in = rows.k(),
                        .structure = task.structure,
                        .weighed = weighed,
                        .before = task.tensor->spec.bytes()};
  OwnedTensor* parts[] = {&factors.input, factors.scale.tensor ? &factors.scale : &factors.output, &factors.output};
  std::size_t at = 0;
  for_each_factor(task, [&](const std::string& factor, const Shape& shape) {
    auto& part = *parts[at++];
    OwnedTensor rounded({shape, task.tensor->spec.dtype});
    convert_elements(rounded.tensor, part.tensor);
    writer.write(factor, rounded.tensor);
    layer.bytes += rounded.tensor.bytes();
    part = std::move(rounded);
  });
  const auto back = expand(pool, factors, task.structure);
  const double all = squared(values.tensor.ptr<float>(), nullptr, values.tensor.size());
  const double lost = squared(values.tensor.ptr<float>(), back.tensor.ptr<float>(), values.tensor.size());
  layer.relative_error = all > 0 ? std::sqrt(lost / all) : 0;
  if (weighed) o.calibration->replaced(name, back.tensor);
  return layer;
}

}  // namespace

double CompressReport::ratio() const {
  double now = 0, was = 0;
  for (const auto& l : layers) now += static_cast<double>(l.bytes), was += static_cast<double>(l.before);
  return was > 0 ? now / was : 1;
}

double CompressReport::relative_error() const {
  double sum = 0;
  for (const auto& l : layers) sum += l.relative_error * l.relative_error;
  return layers.empty() ? 0 : std::sqrt(sum / static_cast<double>(layers.size()));
}

nlohmann::json to_json(const CompressReport& r) {
  auto layers = nlohmann::json::array();
  for (const auto& l : r.layers) {
    layers.push_back({{"name", l.name},
                      {"shape", {l.out, l.in}},
                      {"weighed", l.weighed},
                      {"bytes_before", l.before},
                      {"bytes", l.bytes},
                      {"relative_error", l.relative_error}});
    layers.back().update(to_json(l.structure));
  }
  return {{"method", nn::method_name(r.method)}, {"ratio", r.ratio()}, {"relative_error", r.relative_error()},
          {"bytes_before", r.bytes_before},      {"bytes", r.bytes},   {"layers", std::move(layers)}};
}

std::string to_text(const CompressReport& r) {
  std::size_t width = 6;
  for (const auto& l : r.layers) width = std::max(width, l.name.size());
  std::string text = fmt::format("{:<{}}  {:>14}  {:>6}  {:>6}  {:>7}  {:>9}\n", "matrix", width, "shape", "blocks",
                                 "rank", "ratio", "error");
  for (const auto& l : r.layers)
    text += fmt::format("{:<{}}  {:>14}  {:>6}  {:>6}  {:>7.3f}  {:>8.2f}%\n", l.name, width,
                        fmt::format("({}, {})", l.out, l.in), l.structure.blocks, l.structure.rank,
                        static_cast<double>(l.bytes) / static_cast<double>(l.before), 100 * l.relative_error);
  text += fmt::format("{} matrices by method {}: {:.3f} of their size, error {:.2f}%; the model: {} of {}\n",
                      r.layers.size(), nn::method_name(r.method), r.ratio(), 100 * r.relative_error(),
                      format_bytes(static_cast<double>(r.bytes)), format_bytes(static_cast<double>(r.bytes_before)));
  return text;
}

CompressReport compress_model(Pool& pool, const fs::path& from, const fs::path& to, const CompressModelOptions& o) {
  require(o.ratio > 0 && o.ratio < 1, "compress", "expected a ratio between 0 and 1, found {}", o.ratio);
  std::error_code ignored;
  require(!fs::equivalent(from, to, ignored), "compress", "{}: source and target are the same folder", to.string());
  const auto files = io::TensorFolder::open(from);
  auto tasks = plan_compression(files, o);
  CompressReport report{.method = o.method};
  for (const auto& t : tasks) report.bytes_before += t.tensor->spec.bytes();

  StagedFolder folder(to);
  io::TensorFolderWriter writer(folder.path(), compressed_tensors(tasks));
  if (o.progress) o.progress("", 0, report.bytes_before);
  std::int64_t done = 0;
  Structures structures;
  for (auto& t : tasks) {
    if (!t.layer) {
      writer.write(t.tensor->name, t.shard->view(*t.tensor));
      report.bytes += t.tensor->spec.bytes();
    } else {
      report.layers.push_back(compress_one(pool, t, o, writer));
      report.bytes += report.layers.back().bytes;
      structures.emplace(t.layer->name, t.structure);
    }
    t.shard->file().drop(t.tensor->offset, t.tensor->spec.bytes());
    done += t.tensor->spec.bytes();
    if (o.progress) o.progress(t.tensor->name, done, report.bytes_before);
  }
  writer.commit();
  io::Json config = io::read_json(from / "config.json");
  config[kCompressionKey] = to_json(structures);
  io::write_file_atomic(folder.path() / "config.json", config.dump(2) + "\n");
  copy_companions(from, folder.path());
  folder.commit();
  return report;
}

}  // namespace hpcdl::quant
