#include "hpcdl/io/model_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/io/gguf/file.h"

namespace hpcdl::io {

/// The first few names, for a message.
static std::string names_in(const fs::path& folder) {
  constexpr std::size_t kShown = 4;
  std::error_code error;
  std::vector<std::string> names;
  for (auto it = fs::directory_iterator(folder, error); !error && it != fs::directory_iterator(); it.increment(error))
    names.push_back(it->path().filename().string());
  if (error) return error.message();
  if (names.empty()) return "an empty folder";
  std::sort(names.begin(), names.end());
  const auto more = names.size() > kShown ? fmt::format(" and {} more", names.size() - kShown) : "";
  names.resize(std::min(names.size(), kShown));
  return fmt::format("{}{}", fmt::join(names, ", "), more);
}

std::string contents_in_words(const fs::path& folder) {
  std::error_code ignored;
  return fs::is_directory(folder, ignored) ? names_in(folder)
         : fs::exists(folder, ignored)     ? "a file"
                                           : "nothing with that name";
}

fs::path config_of_model(const fs::path& folder) {
  std::error_code ignored;
  auto path = folder / "config.json";
  if (!fs::exists(path, ignored))
    fail("io", "{}: not a model: expected a folder with config.json and model.safetensors or a GGUF file, found {}",
         folder.string(), contents_in_words(folder));
  return path;
}

bool has_tokenizer(const fs::path& model) {
  std::error_code ignored;
  if (!is_gguf(model)) return fs::exists(model / "tokenizer.json", ignored);
  return GgufFile::open(model).metadata().has("tokenizer.ggml.tokens");
}

fs::path find_model_folder(const std::string& path_or_name) {
  std::error_code ignored;
  if (fs::is_directory(path_or_name, ignored)) {
    const fs::path folder = path_or_name, of_run = folder / "model";
    const bool run = !fs::exists(folder / "config.json", ignored) && fs::exists(of_run / "config.json", ignored);
    config_of_model(run ? of_run : folder);
    return run ? of_run : folder;
  }
  if (is_gguf(path_or_name)) return path_or_name;
  if (fs::exists(path_or_name, ignored)) config_of_model(path_or_name);  // another file: throws
  const auto env = [](const char* name) { return std::getenv(name) ? fs::path(std::getenv(name)) : fs::path(); };
  std::string folder = "models--" + path_or_name;
  if (const auto slash = folder.find('/'); slash != std::string::npos) folder.replace(slash, 1, "--");
  if (folder.find('/') == std::string::npos) {
    for (const fs::path& cache :
         {env("HF_HUB_CACHE"), env("HF_HOME") / "hub", env("HOME") / ".cache/huggingface/hub"}) {
      const fs::path ref = cache / folder / "refs/main";
      if (!cache.is_absolute() || !fs::exists(ref, ignored)) continue;
      std::string commit = read_file(ref, 1024);
      commit.erase(std::find_if(commit.begin(), commit.end(), [](char c) { return c <= ' '; }), commit.end());
      const fs::path snapshot = cache / folder / "snapshots" / commit;
      if (fs::is_directory(snapshot, ignored)) return snapshot;
    }
  }
  fail("io",
       "{}: expected a model folder (config.json, model.safetensors), a GGUF file or the name of a model in the local "
       "Hugging Face cache, found none of them",
       path_or_name);
}

}  // namespace hpcdl::io
