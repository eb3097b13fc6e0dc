#include "cli/model_ranks.h"

#include <algorithm>

#include "hpcdl/io/file.h"
#include "hpcdl/io/gguf/file.h"
#include "hpcdl/parallel/agree.h"
#include "hpcdl/serve/served_model.h"
#include "hpcdl/train/facts.h"

namespace hpcdl::cli {

ModelRanks::ModelRanks(const comm::Joined& joined, const std::string& verb, const std::vector<parallel::Fact>& same)
    : joined_(joined) {
  if (joined.place().world == 1) return;
  expect_same_start(joined, verb, same);
  link_.emplace(joined.world());
}

int ModelRanks::threads(int asked) const { return link_ && asked == 0 ? parallel::threads_per_rank(world()) : asked; }

void ModelRanks::follow(const models::LanguageModel& model, Pool& pool, const TuneOption& tune) {
  infer::follow(model, pool, *link_, [&](infer::PassRunner& runner) {
    auto session = start_tuning(tune, model.device(), pool);
    const bool measures = session && tune.mode == "full";
    const auto prompt = std::min(runner.sizes().context, runner.sizes().budget);
    return tuned_ways(session, tune, measures ? runner.programs(prompt) : std::vector<const Instance*>());
  });
}

int follow(ModelRanks& ranks, const serve::EngineSection& options, const TuneOption& tune) {
  Pool pool(options.threads);
  const auto model = serve::open_model(options, ranks.link(), pool);
  ranks.follow(model, pool, tune);
  return exit_code::kDone;
}

std::vector<parallel::Fact> facts_of_model(const std::filesystem::path& folder, const std::string& device,
                                           const std::string& dtype, const std::string& kv, const TuneOption& tune) {
  std::string files;
  const bool one = io::is_gguf(folder);
  for (const auto& file : one ? std::vector{folder} : io::list_folder(folder))
    if (one || file.extension() == ".safetensors" || file.filename() == "config.json")
      files += fmt::format("{} {:08x} ", file.filename().string(), train::file_checksum(file));
  return {{"--model", fmt::format("{}{}", one ? "" : "a folder with ", files)},
          {"the kind of --device", device_from_name(device).is_cuda() ? "cuda" : "cpu"},
          {"--dtype", dtype},
          {"--kv", kv},
          {"--tune", tune.mode},
          {"--ways", tune.ways}};
}

}  // namespace hpcdl::cli
