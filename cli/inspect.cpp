// hpcdl inspect: what is in a safetensors file, a model folder or a checkpoint; and the programs of a training step.

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/inspect_gguf.h"
#include "cli/verb.h"
#include "hpcdl/core/convert.h"
#include "hpcdl/core/describe.h"
#include "hpcdl/core/units.h"
#include "hpcdl/core/ways.h"
#include "hpcdl/graph/text.h"
#include "hpcdl/infer/engine.h"
#include "hpcdl/io/checkpoint_files.h"
#include "hpcdl/io/gguf/file.h"
#include "hpcdl/io/json.h"
#include "hpcdl/io/model_folder.h"
#include "hpcdl/io/safetensors.h"
#include "hpcdl/models/hf_config.h"
#include "hpcdl/models/image_model.h"
#include "hpcdl/models/packed_weights.h"
#include "hpcdl/ops/way_names.h"
#include "hpcdl/program/bytes.h"
#include "hpcdl/quant/codecs.h"
#include "hpcdl/train/check_config.h"
#include "hpcdl/train/run_table.h"
#include "hpcdl/train/step_programs.h"
#include "hpcdl/train/synthetic_run.h"
#include "hpcdl/train/trainer.h"

namespace hpcdl::cli {

namespace {

namespace fs = std::filesystem;

struct InspectOptions {
  std::string path, config, arch, stem = "cifar", mesh;
  std::int64_t classes = 10, rank = 0, generate = 0;
  bool json = false, program = false, check = false;
};

/// The model of a folder, text or images, for a run with default settings.
void take_model(train::RunConfig& config, const fs::path& folder) {
  if (io::is_gguf(folder) || !models::is_image_config(io::read_json(io::config_of_model(folder)))) {
    config.model = models::read_hf_config(folder);
    return;
  }
  config.image = models::read_image_config(folder);
  config.model.family = models::family_of(config.image.family);
}

/// "dp=8,tp=4": an axis that is not named has one rank; naming an axis twice is an error.
parallel::MeshShape mesh_shape(const std::string& words) {
  parallel::MeshShape shape;
  for (std::size_t at = 0; at < words.size();) {
    const auto end = std::min(words.find(',', at), words.size());
    const auto word = words.substr(at, end - at), axis = word.substr(0, word.find('='));
    int ranks = 0;
    const auto* number = word.data() + std::min(axis.size() + 1, word.size());
    const auto [rest, error] = std::from_chars(number, word.data() + word.size(), ranks);
    const bool known = axis == "dp" || axis == "cp" || axis == "tp";
    if (words.find(axis + "=") < at) fail_usage("inspect", "--mesh: {} is given twice in \"{}\"", axis, words);
    if (!known || error != std::errc() || rest != word.data() + word.size() || ranks < 1 || ranks > 1 << 20)
      fail_usage("inspect", "--mesh: expected the ranks along dp, cp and tp, such as dp=8,tp=4, got \"{}\"", words);
    (axis == "dp" ? shape.dp : axis == "cp" ? shape.cp : shape.tp) = ranks;
    at = end + 1;
  }
  return shape;
}

std::vector<std::int64_t> dims(const Shape& s) { return {s.begin(), s.end()}; }

struct NamedPass {
  std::string name;
  std::shared_ptr<const Pass> pass;
};

std::vector<NamedPass> passes_of_step(const train::StepPrograms& step) {
  std::vector<NamedPass> list{{"forward and backward, first micro-batch", step.first()}};
  if (step.has_more()) list.push_back({"forward and backward, further micro-batches", step.more()});
  if (step.apart()) list.push_back({"forward and backward, last micro-batch", step.last()});
  list.push_back({"update", step.update()});
  if (step.gathers_once()) list.push_back({"values of other ranks, outside of a step", step.gather()});
  return list;
}

/// The programs that generate one text of up to `capacity` tokens.
std::vector<NamedPass> passes_of_generation(const models::Trainable& any, std::int64_t capacity) {
  const auto* model = dynamic_cast<const models::LanguageModel*>(&any);
  if (!model) fail_usage("inspect", "--generate: an image classifier cannot generate text");
  require(capacity <= model->config().context, "inspect", "{} tokens do not fit into the model's context of {}",
          capacity, model->config().context);
  const auto pass = [&](std::int64_t tokens, std::int64_t rows) {
    return infer::batch_pass(*model, infer::BatchLayout::of_one(tokens, capacity, rows));
  };
  std::vector<NamedPass> list{{"one token", pass(1, 1)}};
  for (std::int64_t chunk = 8; chunk <= std::min(capacity, infer::usual_budget({}, 1)); chunk *= 8) {
    list.push_back({fmt::format("{} tokens of a prompt", chunk), pass(chunk, 0)});
    list.push_back({fmt::format("the last {} tokens of a prompt", chunk), pass(chunk, 1)});
  }
  return list;
}

/// Which ways the records of a program use on this machine's GPU.
using RecordWays = std::vector<std::string>;  // by record; empty: not known

RecordWays record_ways(const Instance& exe, Stream& s) {
  WayNotes notes;
  const WithWayNotes with(s, notes);
  exe.prepare(s);
  RecordWays ways(exe.program().records.size());
  for (const auto& [key, note] : notes.all())
    for (const int record : note.records) {
      auto& text = ways[static_cast<std::size_t>(record)];
      text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", note.call, note.used);
    }
  return ways;
}

/// The ways of the programs of a step, if there is the GPU that its config names. The step is made, but never run.
std::vector<RecordWays> ways_of_step(train::RunConfig& config, const std::shared_ptr<const Ways>& ways) {
  const auto device = device_from_name(config.train.device);
  Pool pool(1);
  const auto model = train::model_without_data(config, config.train.seed);
  const train::TrainStep step(*model, pool, train::step_options(config), device);
  StepParams params;
  Stream s(device, pool, &params);
  s.set_ways(ways);
  std::vector<RecordWays> list;
  for (const auto* exe : step.programs(std::min<std::int64_t>(config.train.accumulate, 2)))
    list.push_back(record_ways(*exe, s));
  return list;
}

Json json_of(const Program& program, const RecordWays& ways) {
  Json list = Json::array();
  for (const auto& r : program.records) {
    Json operands = Json::array();
    for (std::uint32_t k = r.operands; k < r.operands + r.operand_count; ++k) {
      const auto& operand = program.operands[k];
      if (operand.slot < 0) {
        operands.push_back(nullptr);
        continue;
      }
      constexpr std::string_view kAccess[] = {"read", "write", "update"};
      operands.push_back({{"slot", operand.slot},
                          {"name", program.slots[static_cast<std::size_t>(operand.slot)].name},
                          {"access", kAccess[static_cast<std::size_t>(operand.access)]},
                          {"dtype", dtype_name(operand.spec.dtype)},
                          {"shape", dims(operand.spec.shape)}});
    }
    list.push_back({{"op", r.op.view()},
                    {"phase", phase_name(r.phase)},
                    {"scope", program.scopes[r.scope]},
                    {"flops", r.cost.operations},
                    {"unit", unit_name(r.cost.unit)},
                    {"bytes", r.cost.bytes()},
                    {"wire_bytes", r.cost.wire},
                    {"operands", std::move(operands)}});
    if (const auto at = list.size() - 1; at < ways.size() && !ways[at].empty()) list.back()["way"] = ways[at];
  }
  return list;
}

std::shared_ptr<const Ways> preferred_ways(const train::RunConfig& config) {
  auto preferred = parse_preferred_ways(config.train.ways, "train.ways");
  check_preferred_ways(preferred, "train.ways");
  return std::make_shared<const Ways>(WayNames{.calls = {}, .preferred = std::move(preferred)});
}

/// The programs of one training step, as a rank records them: of a run's TOML file, or of a model folder with the
/// default settings. It needs neither weights nor data nor other ranks.
int inspect_programs(const InspectOptions& o) {
  train::RunConfig config;
  if (o.path.ends_with(".toml")) train::table_of(config).load({o.path}, {});
  else take_model(config, io::find_model_folder(o.path));
  const auto shape = mesh_shape(o.mesh);
  if (o.rank < 0 || o.rank >= shape.size())
    fail_usage("inspect", "--rank: expected 0 to {}, because the mesh has {} rank{}, got {}", shape.size() - 1,
               shape.size(), shape.size() == 1 ? "" : "s", o.rank);
  config.parallel.dp = shape.dp, config.parallel.cp = shape.cp, config.parallel.tp = shape.tp;
  train::share_global_batch(config, shape.size());
  const auto mesh = parallel::Mesh::described(shape, static_cast<int>(o.rank));
  auto model = train::model_without_data(config, {}, mesh);
  auto options = train::step_options(config);
  train::take_ranks(options, mesh);
  Pool pool(1);
  Stream stream(pool);
  std::optional<train::StepPrograms> step;
  std::vector<NamedPass> passes;
  if (o.generate > 0) {
    if (shape.tp == 1 && !o.path.ends_with(".toml") && !io::is_image_family(config.model.family))  // as its files are
      model = std::make_unique<models::LanguageModel>(models::LanguageModel::open(io::find_model_folder(o.path)));
    passes = passes_of_generation(*model, o.generate);
  } else {
    passes = passes_of_step(step.emplace(*model, options, stream));
  }
  std::vector<RecordWays> ways;
  const bool here = config.train.device != "cpu" && cuda_devices() > 0 && shape.size() == 1 && o.generate == 0;
  if (here) ways = ways_of_step(config, preferred_ways(config));
  ways.resize(passes.size());
  std::string text;
  Json out = Json::array();
  for (std::size_t i = 0; i < passes.size(); ++i) {
    const auto& [name, pass] = passes[i];
    const auto& [program, planned, inputs, outputs] = *pass->planned;
    const auto cost = program.cost();
    const auto mark = fmt::format("{:016x}", digest(program));
    if (o.json)
      out.push_back({{"name", name},
                     {"digest", mark},
                     {"numerics",
                      {{"products", program.numerics.products == F32Products::tf32 ? "tf32" : "exact"},
                       {"atomic_sums", program.numerics.atomic_sums},
                       {"row_invariant", program.numerics.row_invariant}}},
                     {"records", program.records.size()},
                     {"flops", cost.operations},
                     {"bytes", cost.bytes()},
                     {"peak_bytes", planned.arena_bytes},
                     {"record_list", json_of(program, ways[i])}});
    else text += fmt::format("{}, digest {}\n{}\n", name, mark, program_text(program, planned, ways[i]));
  }
  if (o.json)
    print_json({{"mesh", {{"dp", shape.dp}, {"cp", shape.cp}, {"tp", shape.tp}}},
                {"rank", o.rank},
                {"parameters", model->parameter_count()},
                {"programs", out}});
  else
    print_text(text +
               (here ? "" : "the ways of calls are chosen on the device: run this where train.device is a GPU\n"));
  return exit_code::kDone;
}

/// The tensors of a new image classifier, as its files will hold them.
int inspect_arch(const InspectOptions& o) {
  models::ImageConfig config{
      .family = o.arch == "resnet18" ? models::ImageFamily::resnet18 : models::ImageFamily::simple_cnn,
      .stem = o.stem == "imagenet" ? models::Stem::imagenet : models::Stem::cifar,
      .classes = o.classes};
  auto model = models::ImageModel::create(config, 1, false);
  Json tensors = Json::array();
  std::string text;
  std::int64_t bytes = 0;
  for (const bool trained : {true, false})
    for (const auto& p : trained ? model.parameters() : model.buffers()) {
      tensors.push_back({{"name", p.name},
                         {"dtype", dtype_name(p.host.dtype())},
                         {"shape", dims(p.host.shape())},
                         {"trained", trained}});
      text += fmt::format("{:<40}  {:<4}  {}{}\n", p.name, dtype_name(p.host.dtype()), to_string(p.host.shape()),
                          trained ? "" : "  not trained");
      bytes += p.host.bytes();
    }
  if (o.json)
    print_json({{"arch", o.arch},
                {"parameters", model.parameter_count()},
                {"bytes", bytes},
                {"config", Json::parse(models::make_image_config(model.config()).dump())},
                {"tensors", tensors}});
  else
    print_text(text +
               fmt::format("{} parameters, {}\n", model.parameter_count(), format_bytes(static_cast<double>(bytes))));
  return exit_code::kDone;
}

/// Throws Error when a tensor holds a NaN or an infinity.
void check(const io::TensorFolder& folder) {
  for (std::size_t i = 0; i < folder.tensors().size(); ++i) {
    const auto& t = folder.tensors()[i];
    const auto bad = is_float(t.spec.dtype) ? count_non_finite(folder.shard_of(i).view(t)) : 0;
    require(bad == 0, "inspect", "{}: {} of {} elements of \"{}\" are NaN or infinite", folder.path().string(), bad,
            t.spec.size(), t.name);
  }
}

/// The safetensors file, or the folder that holds the model: for an index of shards, its folder; for a training run,
/// model/.
fs::path model_of(const fs::path& path) {
  require(fs::exists(path), "inspect", "{}: no such file or folder", path.string());
  if (path.filename() == "model.safetensors.index.json") return path.has_parent_path() ? path.parent_path() : ".";
  if (!fs::is_directory(path)) return path;
  const auto holds_model = [](const fs::path& p) {
    return fs::exists(p / "model.safetensors") || fs::exists(p / "model.safetensors.index.json");
  };
  if (!holds_model(path) && holds_model(path / "model")) return path / "model";
  require(holds_model(path), "inspect",
          "{}: expected model.safetensors or model.safetensors.index.json in this folder, found neither",
          path.string());
  return path;
}

int inspect(InspectOptions& o, const Command& sub) {
  if (!o.config.empty()) {
    if (!o.path.empty()) fail_usage("inspect", "expected a path or -c, found both: {} and {}", o.path, o.config);
    if (!o.program) fail_usage("inspect", "-c is only for --program");
    o.path = o.config;
  }
  if (o.arch.empty() == o.path.empty())
    fail_usage("inspect", "expected a path, or --arch and the name of an architecture");
  for (const char* option : {"--program", "--check"})
    if (!o.arch.empty() && sub.given(option)) fail_usage("inspect", "{} needs a path, not --arch", option);
  for (const char* option : {"--stem", "--classes"})
    if (o.arch.empty() && sub.given(option)) fail_usage("inspect", "{} is only for --arch", option);
  for (const char* option : {"--mesh", "--rank", "--generate"})
    if (!o.program && sub.given(option)) fail_usage("inspect", "{} is only for --program", option);
  if (o.program && o.check)
    fail_usage("inspect", "--program reads no tensors, and --check reads all of them: give only one of the two");
  if (!o.arch.empty()) return inspect_arch(o);
  if (o.program) return inspect_programs(o);
  if (o.path.ends_with(".toml"))
    fail_usage("inspect", "{}: the TOML file of a run has no tensors; --program shows the programs of its step",
               o.path);
  if (io::is_gguf(o.path)) return inspect_gguf(o.path, {.json = o.json, .check = o.check});
  const fs::path path = model_of(o.path);
  const auto folder = io::TensorFolder::open(path);
  if (o.check) check(folder);
  const auto config_file = fs::is_directory(path) ? path / "config.json" : path.parent_path() / "config.json";
  std::int64_t parameters = 0, bytes = 0;
  for (const auto& t : folder.tensors()) parameters += quant::parameters_in(t.name, t.spec), bytes += t.spec.bytes();
  const auto config = fs::exists(config_file) ? Json::parse(io::read_json(config_file).dump()) : Json();
  // The files of an image classifier also hold tensors that are not trained.
  if (fs::is_directory(path) && fs::exists(config_file) && models::is_image_config(io::read_json(config_file)))
    parameters = models::ImageModel::open(path).parameter_count();
  if (fs::exists(path / "config.json") && models::pack_config_of(path))
    parameters = models::LanguageModel::create(models::read_hf_config(path), {}, false).parameter_count();

  std::optional<io::UsedWays> used;
  if (fs::exists(path / "state.json")) used = io::read_checkpoint_info(path).state.ways;

  if (o.json) {
    Json out = {{"path", path.string()},
                {"parameters", parameters},
                {"bytes", bytes},
                {"config", config},
                {"tensors", Json::array()}};
    for (std::size_t i = 0; i < folder.tensors().size(); ++i) {
      const auto& t = folder.tensors()[i];
      out["tensors"].push_back({{"name", t.name},
                                {"dtype", dtype_name(t.spec.dtype)},
                                {"shape", dims(t.spec.shape)},
                                {"bytes", t.spec.bytes()},
                                {"offset", t.offset},
                                {"file", folder.shard_of(i).file().path().filename().string()}});
    }
    if (used) out["ways"] = Json::parse(io::to_json(*used).dump());
    print_json(out);
    return exit_code::kDone;
  }
  std::string text;
  std::size_t width = 0;
  for (const auto& t : folder.tensors()) width = std::max(width, t.name.size());
  for (const auto& t : folder.tensors())
    text += fmt::format("{:<{}}  {:<8} {:>10}  {}\n", t.name, width, dtype_name(t.spec.dtype),
                        format_bytes(static_cast<double>(t.spec.bytes())), to_string(t.spec.shape));
  text += fmt::format("{} tensors in {} file(s), {} parameters, {}\n", folder.tensors().size(), folder.shards().size(),
                      format_count(static_cast<double>(parameters)), format_bytes(static_cast<double>(bytes)));
  if (!config.is_null()) text += "config " + config.dump() + "\n";
  if (used)
    text += fmt::format("ways: {} on {}; --json lists them\n",
                        used->calls.size() == 1 ? used->calls[0].way : fmt::format("of {} calls", used->calls.size()),
                        used->device);
  print_text(text);
  return exit_code::kDone;
}

}  // namespace

void add_inspect(const Command& program, Run& run) {
  add_verb<InspectOptions>(
      program, run, "inspect",
      "Prints tensors, parameters and config of a safetensors or GGUF file, a model folder or a run",
      [](const Command& sub, InspectOptions& o) {
        sub.option(
            "path", o.path,
            "A .safetensors or GGUF file, the index of several, a model folder, a checkpoint or the output of a run; "
            "with --program also the TOML file of a run");
        sub.option("-c,--config", o.config, "With --program: the TOML file of a run, as by path");
        sub.option("--arch", o.arch, "Instead of a path: an image classifier as it would be created")
            .one_of({"simple_cnn", "resnet18"});
        sub.option("--stem", o.stem, "With --arch: the first layers of a ResNet")
            .one_of({"cifar", "imagenet"})
            .shows_default();
        sub.option("--classes", o.classes, "With --arch: number of classes").positive().shows_default();
        sub.flag("--program", o.program,
                 "The recorded programs of a training step: records, shapes, bytes, flops, peak memory");
        sub.option("--mesh", o.mesh,
                   "With --program: the mesh of ranks that share a step, such as dp=8,tp=4; no rank needs to run");
        sub.option("--rank", o.rank, "With --program: the rank whose programs are printed").shows_default();
        sub.option(
               "--generate", o.generate,
               "With --program: print what generation runs, with room for so many tokens, instead of a training step")
            .positive();
        sub.flag("--check", o.check, "Read every tensor and stop at the first that holds NaN or infinity");
        sub.flag("--json", o.json, "One JSON object on stdout");
      },
      inspect);
}

}  // namespace hpcdl::cli
