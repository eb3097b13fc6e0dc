#include "hpcdl/train/check_config.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/train/run_table.h"

namespace hpcdl::train {
namespace {

std::string verdict(const std::vector<std::string>& overrides) {
  RunConfig c;
  io::ConfigTable table = table_of(c);
  for (const auto& word : overrides) table.apply_override(word);
  try {
    check_config(c);
  } catch (const UsageError& e) {
    return e.what();
  }
  return "fine";
}

TEST(check_config, spans_and_wires_need_divided_state_on_cpus) {
  EXPECT_EQ(verdict({"--parallel.zero=1", "--parallel.zero_span=host", "--parallel.wire_gradients=int4"}), "fine");
  EXPECT_EQ(verdict({"--parallel.zero=3", "--parallel.wire_weights=int8", "--parallel.wire_gradients=bf16"}), "fine");
  EXPECT_EQ(verdict({"--parallel.zero_span=host"}),
            "[config] parallel.zero_span = \"host\" is for runs that divide their state (parallel.zero), and "
            "parallel.zero is 0");
  EXPECT_EQ(verdict({"--parallel.wire_gradients=int4"}),
            "[config] parallel.wire_gradients = \"int4\" is for runs that divide their state (parallel.zero), and "
            "parallel.zero is 0");
  EXPECT_EQ(verdict({"--parallel.zero=2", "--parallel.wire_weights=int8"}),
            "[config] parallel.wire_weights = \"int8\" is for runs that divide weights (parallel.zero = 3), and "
            "parallel.zero is 2");
  EXPECT_EQ(verdict({"--parallel.zero=3", "--parallel.wire_weights=int8", "--train.device=cuda"}),
            "[config] parallel.wire_weights = \"int8\" is for CPUs, as it is not tested between GPUs, and train.device "
            "is cuda");
  EXPECT_EQ(verdict({"--parallel.zero=3", "--parallel.pp=2", "--parallel.zero_span=host"}),
            "[config] parallel.zero_span = \"host\" is for runs without pipelines, with which it is not tested, and "
            "parallel.pp is 2");
}

TEST(check_config, keys_without_effect_are_refused) {
  EXPECT_EQ(verdict({}), "fine");
  EXPECT_EQ(
      verdict({"--model.family=simple_cnn", "--train.optimizer=sgd", "--train.nesterov=true", "--data.mixup=0.2"}),
      "fine");
  EXPECT_EQ(verdict({"--data.mixup=0.2"}), "[config] data.mixup = 0.2 is for images, and model.family is gpt2");
  EXPECT_EQ(verdict({"--model.family=resnet18", "--model.layers=4"}),
            "[config] model.layers = 4 is for text, and model.family is resnet18");
  EXPECT_EQ(verdict({"--model.family=resnet18", "--parallel.tp=2"}),
            "[config] parallel.tp = 2 is for text, and model.family is resnet18");
  EXPECT_EQ(verdict({"--model.rope_theta=5000"}),
            "[config] model.rope_theta = 5000.0 is for families with rotary positions, and model.family is gpt2");
  EXPECT_EQ(verdict({"--model.family=simple_cnn", "--model.stem=imagenet"}),
            "[config] model.stem = \"imagenet\" is for resnet18, and model.family is simple_cnn");
  EXPECT_EQ(verdict({"--model.family=resnet18", "--model.stem=imagenet"}), "fine");
  EXPECT_NE(verdict({"--model.family=resnet18", "--train.dropout=0.1"}).find("resnet18 has none"), std::string::npos);
  EXPECT_EQ(verdict({"--train.nesterov=true"}),
            "[config] train.nesterov = true is for sgd, and train.optimizer is adamw");
  EXPECT_EQ(verdict({"--train.optimizer=sgd", "--train.beta1=0.8"}),
            "[config] train.beta1 = 0.8 is for adamw, and train.optimizer is sgd");
  EXPECT_EQ(verdict({"--offload.interleave=4"}),
            "[config] offload.interleave = 4 is for optimizers in host memory, and offload.optimizer is none");
  EXPECT_EQ(verdict({"--offload.interleave=4", "--offload.optimizer=host"}), "fine");
  EXPECT_EQ(
      verdict({"--train.optimizer=sgd", "--offload.optimizer=host"}),
      "[config] offload.optimizer = \"host\" does not go together with train.optimizer = \"sgd\": set one of them "
      "to its default");
  EXPECT_EQ(verdict({"--train.base_batch=64"}),
            "[config] train.base_batch = 64 is for scaled learning rates, and train.lr_scaling is none");
  EXPECT_EQ(verdict({"--train.base_batch=64", "--train.lr_scaling=sqrt"}), "fine");
  EXPECT_NE(verdict({"--train.optimizer=sgd", "--train.nesterov=true", "--train.momentum=0"}).find("needs momentum"),
            std::string::npos);
  EXPECT_EQ(verdict({"--train.init_scale=1024"}),
            "[config] train.init_scale = 1024.0 is for fp16, and train.dtype is f32");
  EXPECT_EQ(verdict({"--train.init_scale=1024", "--train.dtype=fp16"}), "fine");
  EXPECT_EQ(verdict({"--train.init_scale=3", "--train.dtype=fp16"}),
            "[config] train.init_scale = 3 must be a power of two, so that scaling rounds nothing: the nearest is 4");
  for (const char* key : {"growth_factor=3", "backoff_factor=0.3", "min_scale=0.3"})
    EXPECT_NE(verdict({fmt::format("--train.{}", key), "--train.dtype=fp16"}).find("power of two"), std::string::npos)
        << key;
  EXPECT_EQ(verdict({"--train.beta2=1"}), "[config] train.beta2 = 1 must be below 1");
  EXPECT_EQ(verdict({"--train.beta1=0.99999999999999999"}), "[config] train.beta1 = 1 must be below 1");
  EXPECT_EQ(verdict({"--train.beta2=0.999999999999"}), "fine");
  EXPECT_EQ(verdict({"--train.min_lr=1e-5", "--train.schedule=constant"}),
            "[config] train.min_lr = 1e-05 is for rates that fall, and train.schedule is constant");
  EXPECT_EQ(verdict({"--train.min_lr=0.01", "--train.lr=0.001"}),
            "[config] train.min_lr = 0.01 is above train.lr = 0.001, the highest learning rate");
  EXPECT_EQ(verdict({"--train.min_lr=0.001", "--train.lr=0.001"}), "fine");
  for (const char* eps : {"--train.eps=0", "--train.eps=1e-60"})
    EXPECT_NE(verdict({eps}).find("divides 0 by 0"), std::string::npos) << eps;
  EXPECT_NE(verdict({"--train.dtype=tf32"}).find("is for GPUs"), std::string::npos);
  EXPECT_EQ(verdict({"--train.dtype=tf32", "--train.device=cuda"}), "fine");
  EXPECT_NE(verdict({"--train.atomic_sums=true"}).find("is for GPUs"), std::string::npos);
  EXPECT_EQ(verdict({"--train.atomic_sums=true", "--train.device=cuda"}), "fine");
}

TEST(check_config, says_what_keeps_an_optimizer_from_host_memory) {
  const auto what = [](auto&& change) {
    RunConfig c;
    change(c);
    return std::string(cannot_offload(c, Tier::host));
  };
  EXPECT_EQ(what([](RunConfig&) {}), "");
  EXPECT_EQ(what([](RunConfig& c) { c.parallel.zero = 3; }), "");
  EXPECT_EQ(what([](RunConfig& c) { c.train.dtype = Compute::fp8; }), "train.dtype = \"fp8\"");
  EXPECT_EQ(what([](RunConfig& c) { c.parallel.pp = 2; }), "pipelines (parallel.pp)");
  EXPECT_EQ(what([](RunConfig& c) { c.parallel.cp = 2; }), "rows that ranks share (parallel.cp)");
  EXPECT_EQ(what([](RunConfig& c) { c.model.experts = 4; }), "mixtures of experts");
}

TEST(check_config, offload_says_what_it_cannot_honour) {
  const std::string folder = "--offload.folder=/data", disk = "--offload.optimizer=disk";
  EXPECT_EQ(verdict({disk, folder}), "fine");
  EXPECT_EQ(verdict({disk, folder, "--offload.parameters=disk", "--offload.activations=disk"}), "fine");
  EXPECT_EQ(verdict({"--offload.activations=disk", folder, "--offload.activation_share=0.5"}), "fine");
  EXPECT_EQ(verdict({"--offload.activations=host", "--offload.activation_share=0.5", "--train.device=cuda"}), "fine");
  const auto expect = [](const std::vector<std::string>& words, std::string_view part) {
    const auto got = verdict(words);
    EXPECT_NE(got.find(part), std::string::npos) << got;
  };
  expect({disk}, "needs a folder on a local disk: set offload.folder");
  expect({folder}, "is for what lies on a disk, and nothing does");
  expect({disk, folder, "--train.device=cuda"}, "set offload.parameters = \"host\"");
  expect({"--offload.activations=disk", folder, "--train.device=cuda"}, "are for CPUs");
  expect({disk, folder, "--train.optimizer=sgd"}, "does not go together with train.optimizer = \"sgd\"");
  expect({disk, folder, "--offload.interleave=2"}, "is for optimizers in host memory");
  expect({disk, folder, "--offload.resident=2"}, "is for weights that move");
  expect({disk, folder, "--offload.activation_share=0.5"}, "is for activations that move");
  expect({"--offload.parameters=disk", folder}, "needs the moments there, too");
  expect({"--offload.parameters=disk", disk, folder, "--parallel.zero=1"}, "set parallel.zero = 0");
  const std::string cuda = "--train.device=cuda", host = "--offload.optimizer=host",
                    parameters = "--offload.parameters=host";
  EXPECT_EQ(verdict({parameters, host, cuda, "--offload.resident=2"}), "fine");
  EXPECT_EQ(verdict({parameters, disk, folder, cuda}), "fine");
  expect({parameters, disk, folder, cuda, "--offload.resident=2"}, "and offload.resident = 0");
  expect({parameters, cuda}, "set offload.optimizer = \"host\"");
  expect({parameters, host, cuda, "--parallel.dp=2"}, "does not go together with more than one GPU");
  expect({parameters, host, cuda, "--parallel.tp=2"}, "does not go together with more than one GPU");
  expect({parameters, disk, folder, cuda, "--train.dtype=fp8"}, "does not go together with train.dtype = \"fp8\"");
  for (const std::string key : {"parameters", "activations"}) {
    expect({"--offload." + key + "=host"}, "changes nothing on a CPU");
    expect({"--offload." + key + "=host", "--train.device=cuda", "--parallel.pp=2"},
           "does not go together with pipelines");
    expect({"--offload." + key + "=disk", disk, folder, "--parallel.pp=2"}, "does not go together with pipelines");
  }
}

TEST(check_config, sizes_that_do_not_divide_are_refused_before_the_text_is_read) {
  EXPECT_EQ(verdict({"--model.heads=12", "--parallel.tp=5"}),
            "[shard] 12 heads are not divisible by tp 5, and a head cannot be split; tp may be 1, 2, 3, 4, 6, 12");
  EXPECT_EQ(verdict({"--model.family=llama", "--model.heads=12", "--model.kv_heads=3", "--parallel.tp=2"}),
            "[shard] 3 heads of keys and values are not divisible by tp 2, and a head cannot be split; tp may be 1, 3");
  EXPECT_EQ(verdict({"--model.heads=12", "--parallel.tp=4"}), "fine");
  const std::vector<std::string> words{"--model.heads=12", "--parallel.tp=2", "--model.context=31"};
  EXPECT_EQ(verdict(words), "fine");
  EXPECT_EQ(verdict({words[0], words[1], words[2], "--parallel.sequence=true"}),
            "[config] parallel.sequence: rows of 31 tokens (train.length) are not divisible by tp 2: change one");
}

TEST(check_config, rows_that_ranks_cannot_share_are_refused_with_what_would_fit) {
  EXPECT_EQ(verdict({"--model.heads=12", "--parallel.cp=2", "--model.context=64"}), "fine");
  EXPECT_EQ(
      verdict({"--parallel.cp=3", "--model.context=64"}),
      "[config] parallel.cp = 3 cuts rows into 6 chunks, which do not divide model.context = 64: 60 or 66 would fit");
  EXPECT_EQ(verdict({"--parallel.cp=4", "--model.context=64", "--train.length=6"}),
            "[config] parallel.cp = 4 cuts rows into 8 chunks, which do not divide train.length = 6: 8 would fit");
  EXPECT_EQ(
      verdict({"--model.family=llama", "--model.heads=12", "--model.kv_heads=6", "--parallel.cp=4",
               "--parallel.cp_mode=ulysses", "--model.context=64"}),
      "[config] parallel.cp_mode = \"ulysses\": the 6 heads of keys and values of a rank are not divisible by cp 4; "
      "cp may be 1, 2, 3, 6, or use parallel.cp_mode = \"gather\"");
  EXPECT_EQ(
      verdict(
          {"--model.heads=12", "--parallel.cp=2", "--parallel.tp=2", "--parallel.sequence=true", "--model.context=64"}),
      "[config] parallel.sequence divides tokens among the tp ranks, and parallel.cp = 2 among others: use one of "
      "them");
  EXPECT_NE(verdict({"--parallel.cp=2", "--model.context=64", "--train.dtype=fp8-emu"})
                .find("is not tested with ranks that share rows"),
            std::string::npos);
  EXPECT_EQ(verdict({"--parallel.cp=2", "--model.context=64", "--model.family=mixtral"}), "fine");
  EXPECT_EQ(
      verdict({"--parallel.cp=2", "--model.context=64", "--offload.optimizer=host"}),
      "[config] offload.optimizer = \"host\" does not go together with rows that ranks share (parallel.cp): set one "
      "of them to its default");
  EXPECT_EQ(verdict({"--model.family=mixtral", "--train.dtype=fp8-emu"}),
            "[config] train.dtype = \"fp8-emu\" is not tested with mixtures of experts: set train.dtype to bf16");
  EXPECT_EQ(verdict({"--parallel.cp=2", "--model.context=64", "--parallel.cp_mode=zigzag"}), "fine");
  EXPECT_EQ(verdict({"--model.family=mistral", "--model.window=16", "--parallel.cp=2", "--model.context=64",
                     "--parallel.cp_mode=ring", "--train.device=cuda"}),
            "[config] parallel.cp_mode = \"ring\" with model.window runs on a CPU only, and train.device is cuda: use "
            "parallel.cp_mode = \"gather\" or \"ulysses\"");
  EXPECT_EQ(verdict({"--parallel.cp_mode=ulysses"}),
            "[config] parallel.cp_mode = \"ulysses\" is for rows that ranks share (parallel.cp), and parallel.cp is 1");
  EXPECT_EQ(verdict({"--model.family=resnet18", "--parallel.cp=2"}),
            "[config] parallel.cp = 2 is for text, and model.family is resnet18");
}

TEST(check_config, experts_that_ranks_cannot_divide_are_refused) {
  const std::string family = "--model.family=mixtral", ep = "--parallel.ep=2";
  EXPECT_EQ(verdict({family, ep, "--model.capacity=1.25"}), "fine");
  EXPECT_EQ(verdict({ep}), "[config] parallel.ep = 2 is for mixtures of experts, and model.family is gpt2");
  EXPECT_EQ(verdict({family, "--model.capacity=2"}),
            "[config] model.capacity = 2.0 is for experts that ranks divide (parallel.ep), and parallel.ep is 1");
  EXPECT_EQ(verdict({family, ep, "--model.capacity=0.001"}),
            "[config] model.capacity = 0.001 is below 0.01: use about 1.25, or 0 for room for all tokens");
  EXPECT_NE(verdict({family, "--parallel.tp=2", "--parallel.sequence=true"}).find("routes all tokens of a mixture"),
            std::string::npos);
  EXPECT_EQ(verdict({family, ep, "--train.device=cuda"}), "fine");
  EXPECT_NE(verdict({family, ep, "--train.device=cuda", "--train.dtype=bf16", "--parallel.zero=1"})
                .find("set parallel.zero = 0, or train.dtype = \"f32\""),
            std::string::npos);
  EXPECT_NE(verdict({family, ep, "--parallel.tp=2", "--train.device=cuda"}).find("have not been run together on GPUs"),
            std::string::npos);
}

TEST(check_config, a_saved_config_is_as_good_as_the_first) {
  RunConfig c, again;
  table_of(c).apply_override("--model.family=simple_cnn");
  table_of(again).apply_toml(table_of(c).to_toml(), "saved");
  EXPECT_NO_THROW(check_config(again));
}

}  // namespace
}  // namespace hpcdl::train
