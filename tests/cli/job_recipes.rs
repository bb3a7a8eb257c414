//! Goal: each recipe of `docs/job-recipes.md` does what it says, in 40 lines or fewer.
//!
//! Method: the page's own commands, run by a shell against a service. The programs that they name
//! are scripts that note when they ran.

use std::os::unix::fs::{PermissionsExt as _, symlink};

use keylatch_testkit::{Exit, RunningCommand, Service, eventually, free_port};
use tempfile::TempDir;

use crate::is;
use crate::recipes::code;

const PAGE: &str = include_str!("../../docs/job-recipes.md");

/// The recipe of this title, up to the next one.
fn recipe(title: &str) -> &'static str {
    PAGE.split("\n## ").filter_map(|one| one.strip_prefix(title)).next().expect("a recipe")
}

/// A service, and machines on which the programs of the recipes are.
struct Machines {
    service: Service,
    directory: TempDir,
}

impl Machines {
    /// Machines with this program, which is a script in a directory of its own.
    async fn with(program: &str, script: &str) -> Self {
        let machines = Self {
            service: Service::start("memory:").await,
            directory: tempfile::tempdir().expect("a directory"),
        };
        let keylatch = machines.directory.path().join("keylatch");
        symlink(env!("CARGO_BIN_EXE_keylatch"), keylatch).expect("a link");
        let path = machines.directory.path().join(program);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a script");
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(path, executable).expect("it may be executed");
        machines
    }

    fn start(&self, commands: &str, environment: &[(&str, &str)]) -> RunningCommand {
        let here = self.directory.path().display().to_string();
        let path = format!("{here}:{}", std::env::var("PATH").expect("a path"));
        let url = self.service.url();
        let own = [("PATH", &*path), ("KEYLATCH_URL", &url), ("HERE", &here)];
        let script = format!("cd \"$HERE\" && {commands}");
        RunningCommand::of(&["sh", "-c", &script], &[&own[..], environment].concat())
    }

    async fn run(&self, commands: &str, environment: &[(&str, &str)]) -> Exit {
        self.start(commands, environment).ended().await
    }

    /// The lines of a file that a program has written.
    fn lines(&self, file: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.directory.path().join(file)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

#[test]
fn each_recipe_for_jobs_has_at_most_40_lines_of_code() {
    let recipes: Vec<_> = PAGE.split("\n## ").skip(1).collect();
    assert_eq!(recipes.len(), 9);
    for recipe in recipes {
        let code = recipe.split("```").skip(1).step_by(2);
        let lines = code.flat_map(|block| block.lines().skip(1)).filter(|line| !line.is_empty());
        assert!((1..=40).contains(&lines.count()), "{recipe}");
    }
}

#[tokio::test]
async fn nightly_job_runs_once_by_cron_and_by_systemd() {
    let recipe = recipe("A nightly job on three machines");
    let machines = Machines::with("report", "echo ran >>ran").await;
    let crontab = code(recipe, "text").splitn(7, ' ').last().expect("a command");
    let unit = code(recipe, "ini").lines().find_map(|line| line.strip_prefix("ExecStart="));
    let unit = unit.expect("a command").replace("%%", "%");
    for command in [&crontab.replace("\\%", "%"), &unit, &unit] {
        is(&machines.run(command, &[]).await, 0, &[]);
    }
    assert_eq!(machines.lines("ran"), ["ran"]);
}

/// The words of a `command` in YAML, which is JSON here, as a line for a shell.
fn command_of(yaml: &str) -> String {
    let words = yaml.trim().strip_prefix("command: ").expect("a command");
    let words: Vec<String> = serde_json::from_str(words).expect("a list of words");
    words.iter().map(|word| format!("'{word}' ")).collect()
}

#[tokio::test]
async fn pods_run_a_job_once_and_are_told_who_leads() {
    let recipe = recipe("A CronJob, and a leader beside a program");
    let machines = Machines::with("report", "echo ran >>ran").await;
    let blocks: Vec<_> = recipe.split("```yaml\n").skip(1).collect();
    let [job, sidecar] = blocks.as_slice() else { panic!("two commands in {recipe}") };
    let command = |block: &str| command_of(block.split("```").next().expect("a block"));
    for _ in 0..2 {
        is(&machines.run(&command(job), &[]).await, 0, &[]);
    }
    assert_eq!(machines.lines("ran"), ["ran"]);
    let address = format!("127.0.0.1:{}", free_port());
    let sidecar =
        command(sidecar).replace("127.0.0.1:4040", &address).replace("$(POD_IP)", "10.0.0.3");
    let leader = machines.start(&format!("exec {sidecar}"), &[]);
    let says = async || {
        let answer = reqwest::get(format!("http://{address}/")).await.ok()?;
        let text = answer.text().await.expect("a text");
        (text == r#"{"name":"http://10.0.0.3:8080"}"#).then_some(())
    };
    eventually(says).await;
    leader.signal("-TERM");
    is(&leader.ended().await, 0, &[]);
}

#[tokio::test]
async fn terraform_applies_under_a_lock_that_ends() {
    let recipe = recipe("Terraform, and a state lock that ends");
    let machines = Machines::with("terraform", "echo \"$KEYLATCH_NAME: $*\" >>ran").await;
    is(&machines.run(code(recipe, "bash"), &[]).await, 0, &[]);
    assert_eq!(machines.lines("ran"), ["tf/prod: apply -lock=false -auto-approve"]);
}

#[tokio::test]
async fn deployments_of_several_repositories_take_turns() {
    let recipe = recipe("One deployment at a time, over repositories");
    let script = "mkdir deploying && rmdir deploying && echo ran >>ran";
    let machines = Machines::with("deploy.sh", script).await;
    let (github, gitlab) =
        ([("GITHUB_REPOSITORY", "acme/shop")], [("CI_PROJECT_PATH", "acme/app")]);
    let commands = code(recipe, "bash");
    let both = [machines.start(commands, &github), machines.start(commands, &gitlab)];
    for one in both {
        is(&one.ended().await, 0, &[]);
    }
    assert_eq!(machines.lines("ran"), ["ran", "ran"]);
}

#[tokio::test]
async fn at_most_five_workers_run() {
    let recipe = recipe("At most five workers, on all machines");
    let script = "mkdir \"slot-$KEYLATCH_SLOT\" || echo twice >>twice
        ls -d slot-* | wc -l >>at_once; echo \"$1\" >>ran; rmdir \"slot-$KEYLATCH_SLOT\"";
    let machines = Machines::with("import", script).await;
    is(&machines.run(code(recipe, "bash"), &[]).await, 0, &[]);
    assert_eq!(machines.lines("ran").len(), 7);
    assert_eq!(machines.lines("twice"), [""; 0]);
    let at_once = machines.lines("at_once");
    assert!(at_once.iter().all(|count| count.trim().parse::<u32>().is_ok_and(|it| it <= 5)));
}

#[tokio::test]
async fn each_holder_of_the_pool_has_a_machine_of_its_own() {
    let recipe = recipe("A pool of named machines");
    let machines = Machines::with("flash", "echo \"$1\" >>flashed; read -r go <\"$1.go\"").await;
    let names = ["galaxy-s24", "pixel-8", "xperia-5"];
    for name in names {
        is(&machines.run(&format!("mkfifo {name}.go"), &[]).await, 0, &[]);
    }
    let holders = [(); 3].map(|()| machines.start(code(recipe, "bash"), &[]));
    eventually(async || (machines.lines("flashed").len() == 3).then_some(())).await;
    let mut flashed = machines.lines("flashed");
    flashed.sort_unstable();
    assert_eq!(flashed, names);
    for name in names {
        is(&machines.run(&format!("echo go >{name}.go"), &[]).await, 0, &[]);
    }
    for holder in holders {
        is(&holder.ended().await, 0, &[]);
    }
}

#[tokio::test]
async fn one_of_several_replicas_migrates_and_all_start() {
    let recipe = recipe("Migrations by several replicas");
    let machines = Machines::with("migrate", "echo ran >>ran; exit \"$EXIT\"").await;
    for (exit, start) in [("0", "replica starts\n"), ("3", "")] {
        let environment = [("VERSION", exit), ("EXIT", exit)];
        let replicas = [(); 3].map(|()| machines.start(code(recipe, "bash"), &environment));
        for replica in replicas {
            let ended = replica.ended().await;
            is(&ended, exit.parse().expect("a code"), &[]);
            assert_eq!(ended.stdout, start);
        }
    }
    assert_eq!(machines.lines("ran"), ["ran", "ran"]);
}

#[tokio::test]
async fn second_agent_is_told_who_works_in_the_worktree() {
    let recipe = recipe("One worktree, one coding agent");
    let machines = Machines::with("agent", "echo ran >>ran; read -r go <go").await;
    is(&machines.run("git init -q . && mkfifo go", &[]).await, 0, &[]);
    let first = machines.start(code(recipe, "bash"), &[("AGENT", "alice")]);
    eventually(async || (!machines.lines("ran").is_empty()).then_some(())).await;
    let second = machines.run(code(recipe, "bash"), &[("AGENT", "bob")]).await;
    is(&second, 73, &["is held by alice"]);
    is(&machines.run("echo go >go", &[]).await, 0, &[]);
    is(&first.ended().await, 0, &[]);
    assert_eq!(machines.lines("ran"), ["ran"]);
}

#[tokio::test]
async fn second_person_is_told_who_edits_the_record() {
    let recipe = recipe("Somebody else edits this record");
    let machines = Machines::with("unused", "").await;
    let ended = machines.run(code(recipe, "bash"), &[]).await;
    is(&ended, 0, &[]);
    assert_eq!(ended.stdout, "Ann edits this invoice\n200\n204\n");
    machines.service.is_free("invoice%2F17").await;
}

#[tokio::test]
async fn leader_is_found_as_the_page_says() {
    let page = include_str!("../../docs/elect.md").split("## By curl").nth(1).expect("a part");
    let machines = Machines::with("unused", "").await;
    let commands = code(page, "bash").replace("localhost:7070", "\"$KEYLATCH_URL\"");
    let ended = machines.run(&commands, &[]).await;
    is(&ended, 0, &[]);
    let found = ended.stdout.matches(r#""owner":"http://10.0.0.3:8080""#).count();
    assert_eq!(found, 2, "{ended:?}");
}
