//! A toy shop behind the guarded routes, to try them: it creates, reads and lists orders and
//! payments, takes its time and fails as told, and forgets all with the process.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::{Extension, Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::openapi::{HttpMethod, Paths};
use utoipa::{Path as _, ToSchema};

use super::operation;
use crate::http::extract::parse;
use crate::http::problem::{Code, Problem};
use crate::http::problem_responses::{
    GuardedProblems, PageProblems, SandboxProblems, SystemProblems,
};
use keylatch_axum::{BodyLimits, read_body};
use keylatch_core::lock::FencingToken;

/// How many are remembered.
const ROOM: usize = 1000;
const LIMITS: BodyLimits = BodyLimits { bytes: 1024 * 1024, time: Duration::from_secs(10) };

/// What to create. All but the amount and the currency may be left out.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default, expecting = "a JSON object")]
#[schema(as = NewOrder, example = json!({
    "amount": 1999, "currency": "EUR", "items": [{"name": "coffee", "quantity": 2}]
}))]
pub(crate) struct New {
    /// In the smallest unit: 1 to 99999999.
    #[schema(minimum = 1, maximum = 99999999, required)]
    amount: Option<u64>,
    /// Three capital letters.
    #[schema(pattern = "^[A-Z]{3}$", required)]
    currency: Option<String>,
    /// What is bought.
    items: Vec<Item>,
    /// How long to take, in milliseconds: at most 60000.
    #[schema(maximum = 60000)]
    delay_ms: u64,
    /// The status of a failure to play, 400 to 599. Nothing is created then.
    #[schema(minimum = 400, maximum = 599)]
    fail: Option<u16>,
}

/// Something that is bought.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Item {
    /// What.
    name: String,
    /// How many.
    #[serde(default = "one")]
    quantity: u32,
}

/// An order or a payment.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Order {
    /// Its id.
    id: String,
    /// In the smallest unit.
    amount: u64,
    /// The currency.
    currency: String,
    /// What was bought.
    items: Vec<Item>,
    /// When it was created.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// The fencing token of the run that created it; `null` where the request had no key.
    #[schema(value_type = Option<u64>)]
    fencing_token: Option<FencingToken>,
}

/// The last orders or payments.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Orders {
    /// Newest first.
    orders: Vec<Order>,
}

/// What is at `path` and below it.
pub(super) fn router(path: &str) -> Router {
    let sandbox = Sandbox { path: path.to_owned(), orders: Mutex::default() };
    Router::new()
        .route(path, post(create).get(list))
        .route(&format!("{path}/{{id}}"), get(look))
        .method_not_allowed_fallback(crate::http::system::method_not_allowed)
        .with_state(Arc::new(sandbox))
}

/// The operations of a sandbox at `path`.
pub(super) fn document(path: &str) -> Paths {
    let mut one = __path_create::operation();
    operation::add_headers(&mut one);
    let operations = [
        (path.to_owned(), HttpMethod::Post, one, "create"),
        (path.to_owned(), HttpMethod::Get, __path_list::operation(), "list"),
        (format!("{path}/{{id}}"), HttpMethod::Get, __path_look::operation(), "get"),
    ];
    let mut paths = Paths::new();
    for (path_of_one, method, mut operation, verb) in operations {
        operation::name(&mut operation, verb, path);
        paths.add_path_operation(path_of_one, vec![method], operation);
    }
    paths
}

#[derive(Debug)]
struct Sandbox {
    path: String,
    orders: Mutex<VecDeque<Order>>,
}

impl Sandbox {
    fn orders(&self) -> MutexGuard<'_, VecDeque<Order>> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Create
///
/// Runs once under its Idempotency-Key, however often it is sent. Every repeat reads the first
/// answer. `delay_ms` and `fail` are there to play with.
#[utoipa::path(
    post,
    path = "",
    request_body(content = New, description = "As JSON, or as a form",
        example = json!({"amount": 1999, "currency": "EUR", "items": [{"name": "coffee", "quantity": 2}]})),
    responses(
        (status = 201, description = "It is created. A repeat reads the same, with `Idempotent-Replayed`", body = Order, headers(
            ("Location" = String, description = "Its own URL"),
            ("Idempotency-Key-Expires" = String, description = "Until when the key is remembered, at least (an HTTP date)"),
        )),
        GuardedProblems,
        SandboxProblems,
    )
)]
async fn create(
    State(sandbox): State<Arc<Sandbox>>,
    fence: Option<Extension<FencingToken>>,
    request: Request,
) -> Response {
    let wants_page = wants_page(request.headers());
    let new = match read_new(request).await {
        Ok(new) => new,
        Err(problem) => return problem.with_retry().into_response(),
    };
    // A sleep of no time sets a timer all the same, and takes until its next tick.
    if new.delay_ms > 0 {
        tokio::time::sleep(Duration::from_millis(new.delay_ms)).await;
    }
    if let Some(status) = new.fail.and_then(|status| StatusCode::from_u16(status).ok()) {
        let body = serde_json::json!({"error": "failed, as asked", "status": status.as_u16()});
        return (status, Json(body)).into_response();
    }
    let order = Order {
        id: id(),
        amount: new.amount.unwrap_or_default(),
        currency: new.currency.unwrap_or_default(),
        items: new.items,
        created_at: Timestamp::now(),
        fencing_token: fence.map(|Extension(fence)| fence),
    };
    {
        let mut orders = sandbox.orders();
        orders.push_front(order.clone());
        orders.truncate(ROOM);
    }
    if wants_page {
        return Redirect::to(&format!("/demo?order={}", order.id)).into_response();
    }
    let location = HeaderValue::try_from(format!("{}/{}", sandbox.path, order.id));
    let mut response = (StatusCode::CREATED, Json(order)).into_response();
    response.headers_mut().extend(location.ok().map(|location| (header::LOCATION, location)));
    response
}

/// List
///
/// The last hundred.
#[utoipa::path(
    get,
    path = "",
    responses((status = 200, description = "Newest first", body = Orders), SystemProblems)
)]
async fn list(State(sandbox): State<Arc<Sandbox>>) -> Json<Orders> {
    Json(Orders { orders: sandbox.orders().iter().take(100).cloned().collect() })
}

/// Look
#[utoipa::path(
    get,
    path = "",
    params(("id" = String, Path, description = "Its id")),
    responses((status = 200, description = "It is there", body = Order), PageProblems)
)]
async fn look(State(sandbox): State<Arc<Sandbox>>, Path(id): Path<String>) -> Response {
    let found = sandbox.orders().iter().find(|order| order.id == id).cloned();
    match found {
        Some(order) => Json(order).into_response(),
        None => Problem::new(Code::NotFound, "There is no such order.").into_response(),
    }
}

async fn read_new(request: Request) -> Result<New, Problem> {
    let form = content_type(request.headers()).starts_with("application/x-www-form-urlencoded");
    let body = read_body(request.into_body(), LIMITS).await?;
    // curl sends JSON as a form unless it is told otherwise.
    let json = body.trim_ascii_start().starts_with(b"{");
    let new = if form && !json { of_form(&body)? } else { parse::<New>(&body)? };
    let rule = |holds: bool, field: &str, rule: &str| {
        if holds { Ok(()) } else { Err(invalid(field, rule)) }
    };
    rule(
        new.amount.is_some_and(|amount| (1..=99_999_999).contains(&amount)),
        "amount",
        "must be 1 to 99999999",
    )?;
    let letters = |currency: &String| {
        currency.len() == 3 && currency.bytes().all(|byte| byte.is_ascii_uppercase())
    };
    rule(new.currency.as_ref().is_some_and(letters), "currency", "must be three capital letters")?;
    rule(new.items.iter().all(|item| item.quantity > 0), "items", "must have a quantity each")?;
    rule(new.delay_ms <= 60_000, "delay_ms", "must be at most 60000")?;
    rule(new.fail.is_none_or(|fail| (400..600).contains(&fail)), "fail", "must be 400 to 599")?;
    Ok(new)
}

/// A form of a browser: one item, and fields that may be empty.
fn of_form(body: &[u8]) -> Result<New, Problem> {
    let mut new = New::default();
    for (field, value) in form_urlencoded::parse(body).filter(|(_, value)| !value.is_empty()) {
        let number = || value.parse().map_err(|_| invalid(&field, "must be a whole number"));
        match &*field {
            "amount" => new.amount = Some(number()?),
            "currency" => new.currency = Some(value.into_owned()),
            "item" => new.items.push(Item { name: value.into_owned(), quantity: 1 }),
            "delay_ms" => new.delay_ms = number()?,
            "fail" => new.fail = Some(u16::try_from(number()?).unwrap_or(u16::MAX)),
            "idempotency_key" => {}
            _ => return Err(invalid(&field, "is not a field")),
        }
    }
    Ok(new)
}

fn invalid(field: &str, rule: &str) -> Problem {
    Problem::new(Code::ValidationFailed, format!("`{field}` {rule}.")).with_field(field)
}

fn wants_page(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    accept.is_some_and(|accept| accept.contains("text/html"))
}

fn content_type(headers: &HeaderMap) -> &str {
    headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

fn id() -> String {
    // Without random bytes the ids of a toy are alike.
    format!("{:016x}", getrandom::u64().unwrap_or_default())
}

fn one() -> u32 {
    1
}
