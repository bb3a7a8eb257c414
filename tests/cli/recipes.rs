//! Goal: each recipe of `docs/recipes.md` does what it says, in 40 lines or fewer.
//!
//! Method: the page's own configuration, commands and programs, with only the two addresses changed
//! to free ones, run against the process. What they print, and what the app behind was asked, is
//! what the page says.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc;

use axum::Json;
use axum::http::{Method, StatusCode};
use axum::response::IntoResponse as _;
use keylatch_testkit::{Answer, Process, Upstream, created, eventually, free_port};
use serde_json::json;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::runtime::Handle;

use crate::KEYLATCH;

const PAGE: &str = include_str!("../../docs/recipes.md");
const APP: &str = "http://127.0.0.1:8000";

/// The recipe of this title, up to the next one.
fn recipe(title: &str) -> &'static str {
    let all = PAGE.split("\n## ");
    all.filter_map(|one| one.strip_prefix(title)).next().expect("a recipe")
}

/// The code of a recipe in this language.
pub(crate) fn code<'a>(recipe: &'a str, language: &str) -> &'a str {
    let blocks = recipe.split("```").skip(1).step_by(2);
    let block = blocks.filter_map(|block| block.strip_prefix(language)?.strip_prefix('\n')).next();
    block.unwrap_or_else(|| panic!("no {language} in {recipe}"))
}

/// A keylatch by the recipe's configuration, in front of the app at a URL.
async fn serve(recipe: &str, app: &str) -> Process {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let settings = code(recipe, "toml");
    assert!(settings.contains(APP), "{settings}");
    std::fs::write(file.path(), settings.replace(APP, app)).expect("it is written");
    KEYLATCH.serve(&["--config", &file.path().display().to_string()], &[]).await
}

/// What a program prints that runs in a directory of its own.
async fn run(program: &[&str], directory: &Path) -> String {
    let (name, arguments) = program.split_first().expect("a program");
    let mut command = Command::new(name);
    command.args(arguments).current_dir(directory).stdin(Stdio::null()).kill_on_drop(true);
    let ran = command.output().await.expect("it runs");
    let (out, error) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{program:?}: {out} {error}");
    out.into_owned()
}

/// What the recipe's commands print.
async fn run_commands(recipe: &str, service: &Process) -> String {
    let commands = code(recipe, "bash").replace("127.0.0.1:7070", &service.address.to_string());
    let directory = tempfile::tempdir().expect("a directory");
    run(&["bash", "-c", &commands], directory.path()).await
}

/// The status of each response that is printed with its head, and whether it is a replay.
fn responses(printed: &str) -> Vec<(u16, bool)> {
    let printed = printed.to_lowercase();
    let heads = printed.split("http/1.1 ").skip(1);
    let status = |head: &str| head[..3].parse().expect("a status");
    heads.map(|head| (status(head), head.contains("idempotent-replayed: true"))).collect()
}

#[test]
fn each_recipe_has_at_most_40_lines_of_code() {
    let recipes: Vec<_> = PAGE.split("\n## ").skip(1).collect();
    assert_eq!(recipes.len(), 5);
    for recipe in recipes {
        let code = recipe.split("```").skip(1).step_by(2);
        let lines = code.flat_map(|block| block.lines().skip(1)).filter(|line| !line.is_empty());
        assert!(lines.count() <= 40, "{recipe}");
    }
}

#[tokio::test]
async fn double_clicked_form_is_one_order() {
    let (recipe, app) = (recipe("A double-clicked order form"), Upstream::start().await);
    let service = serve(recipe, &app.url()).await;
    let printed = run_commands(recipe, &service).await;
    let mut read = responses(&printed);
    read.sort_unstable();
    assert_eq!(read, [(201, false), (201, true)], "{printed}");
    assert_eq!(printed.matches("{\"run\":1}").count(), 2, "{printed}");
    assert_eq!(app.runs(), 1);
}

#[tokio::test]
async fn webhook_that_is_delivered_again_is_handled_once() {
    let (recipe, app) = (recipe("A Stripe and a GitHub webhook"), Upstream::start().await);
    app.answers(|seen| {
        let names = ["stripe-signature", "x-hub-signature-256"];
        let mut signatures = names.iter().filter_map(|name| seen.headers.get(*name)?.to_str().ok());
        if signatures.next().expect("a signature").contains("forged") {
            return StatusCode::BAD_REQUEST.into_response();
        }
        created(seen.run)
    });
    let service = serve(recipe, &app.url()).await;
    let printed = run_commands(recipe, &service).await;
    let each = [(400, false), (201, false), (201, true)];
    assert_eq!(responses(&printed), [each, each].concat(), "{printed}");
    assert_eq!(app.runs(), 4);
}

/// The app of the flash sale, with two in stock.
struct Sale {
    directory: TempDir,
    port: u16,
    _app: Child,
}

impl Sale {
    /// Starts the recipe's program, which finds its locks at this address.
    async fn start(recipe: &str, port: u16, locks: SocketAddr) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let make = "database.execute('CREATE TABLE stock AS SELECT 2 AS left, 0 AS fence')";
        ask_stock(directory.path(), make).await;
        let program = code(recipe, "python").replace("127.0.0.1:7070", &locks.to_string());
        let program = program.replace("8000", &port.to_string());
        let mut app = Command::new("python3");
        app.args(["-c", &program]).current_dir(directory.path()).stderr(Stdio::null());
        let app = app.kill_on_drop(true).spawn().expect("an app");
        eventually(async || TcpStream::connect(("127.0.0.1", port)).await.ok()).await;
        Self { directory, port, _app: app }
    }
}

/// How many are left, as another process reads it.
async fn left(directory: &Path) -> String {
    ask_stock(directory, "print(*database.execute('SELECT left FROM stock').fetchone())").await
}

async fn ask_stock(directory: &Path, statement: &str) -> String {
    let open = "import sqlite3\nwith sqlite3.connect('sale.sqlite') as database: ";
    run(&["python3", "-c", &format!("{open}{statement}")], directory).await
}

#[tokio::test]
async fn flash_sale_sells_what_is_there_once_to_each_user() {
    let (recipe, port) = (recipe("One order for each user in a flash sale"), free_port());
    let service = serve(recipe, &format!("http://127.0.0.1:{port}")).await;
    let sale = Sale::start(recipe, port, service.address).await;
    let printed = run_commands(recipe, &service).await;
    let mut lines: Vec<_> = printed.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines.len(), 6, "{printed}");
    assert!(lines.chunks(2).all(|clicks| clicks[0] == clicks[1]), "{printed}");
    assert_eq!(lines.iter().filter(|line| line.ends_with(" 201")).count(), 4, "{printed}");
    assert_eq!(lines.iter().filter(|line| line.ends_with(" 410")).count(), 2, "{printed}");
    assert_eq!(left(sale.directory.path()).await, "0\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flash_sale_unlocks_after_the_commit() {
    let recipe = recipe("One order for each user in a flash sale");
    // In the place of keylatch, to look at the stock when the unlock comes and before the app gets
    // its answer.
    let (locks, (unlocks, unlocked)) = (Upstream::start().await, mpsc::channel());
    let sale = Sale::start(recipe, free_port(), locks.address).await;
    let directory = sale.directory.path().to_owned();
    locks.answers(move |seen| {
        if seen.method == Method::DELETE {
            let left = tokio::task::block_in_place(|| Handle::current().block_on(left(&directory)));
            unlocks.send(left).expect("the test still reads");
        }
        Json(json!({"token": "t", "fencing_token": 7}))
    });
    let order = reqwest::Client::new().post(format!("http://127.0.0.1:{}/sale/orders", sale.port));
    assert_eq!(Answer::of(order.body("item=tea")).await.status, 201);
    assert_eq!(unlocked.recv().as_deref(), Ok("1\n"));
}

#[tokio::test]
async fn name_is_taken_by_the_order_that_has_it() {
    let (recipe, app) = (recipe("Is this name taken?"), Upstream::start().await);
    let service = serve(recipe, &app.url()).await;
    let printed = run_commands(recipe, &service).await;
    // The page says what each command prints.
    let said = code(recipe, "bash").lines().filter_map(|line| line.split_once(" # "));
    let said: Vec<_> = said.map(|(_, status)| &status[..3]).collect();
    assert_eq!(printed.lines().collect::<Vec<_>>(), said);
    assert_eq!(said.len(), 5);
    assert_eq!(app.runs(), 1);
}

#[tokio::test]
async fn message_that_is_delivered_again_is_acknowledged_without_work() {
    let recipe = recipe("An SQS or Kafka consumer");
    let (service, directory) = (KEYLATCH.serve(&[], &[]).await, tempfile::tempdir().expect("one"));
    let consumer = code(recipe, "python").replace("127.0.0.1:7070", &service.address.to_string());
    let deliveries = r#"
import concurrent.futures
worked = []
def fail(text):
    raise ValueError(text)
def work(text):
    worked.append(text)
    return len(worked)
try:
    handle("orders-3-17", "mail to ann", fail)
except ValueError as error:
    print("failed:", error)
with concurrent.futures.ThreadPoolExecutor() as threads:
    print(*threads.map(lambda _: handle("orders-3-17", "mail to ann", work), range(4)))
print(handle("orders-3-18", "mail to ben", work), handle("orders-3-18", "another mail", work), worked)
"#;
    let printed = run(&["python3", "-c", &(consumer + deliveries)], directory.path()).await;
    let said =
        "failed: mail to ann\nTrue True True True\nTrue False ['mail to ann', 'mail to ben']\n";
    assert_eq!(printed, said);
}
