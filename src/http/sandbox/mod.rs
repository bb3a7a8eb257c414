//! The toy shop that is built in: `/v1/orders`, `/v1/payments` and the page `/demo`, to see what an
//! idempotency key does before there is a service of one's own to guard.
//!
//! It is there where people try keylatch, and nowhere else: [`SandboxMode`]. Its routes are guarded
//! by the same layer as those of the configuration, under a lease that is short, so that a service
//! that is killed in the middle of an order shows within seconds what becomes of it. Orders and
//! payments are placed, read and listed; a request takes its time and fails as it asks to, so that
//! people can see what a repeat reads after each. What is placed is in the [`OrderBook`]. Tested in
//! `tests/api/sandbox.rs` and `sandbox_orders.rs`.

mod orders;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Extension, Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::openapi::{
    ComponentsBuilder, HttpMethod, OpenApi, OpenApiBuilder, Paths, RefOr, Schema,
};
use utoipa::{PartialSchema as _, Path as _, ToSchema};

use self::orders::{Item, Order, OrderBook, OrderError};
use super::api::body::Json;
use super::api::record_list::resolve_url;
use super::extract::parse;
use super::guards::{add_headers, name_operation};
use super::method_not_allowed;
use super::openapi::problems::{self, HEALTH};
use super::problem::{Code, Problem};
use keylatch_axum::gateway::wants_page;
use keylatch_axum::{
    BodyLimits, DeriveKey, Guard, IdempotencyLayer, InvalidSetting, MissingKey, RetentionPolicy,
    read_body,
};
use keylatch_core::idempotency::IdempotencyService;
use keylatch_core::lock::FencingToken;
use keylatch_core::store::{Effect, StoreError};

/// Where orders are placed.
const PATHS: [&str; 2] = ["/v1/orders", PAYMENTS];
/// Where they are called payments.
const PAYMENTS: &str = "/v1/payments";
/// Where the form of the page places an order that has neither JavaScript nor a key.
const KEYLESS: &str = "/demo/orders";
/// How long a run may go unheard before it counts as interrupted.
const LEASE_MS: u64 = 3000;
/// What a request may take beside its waits: some steps of the store.
const SLACK: Duration = Duration::from_secs(10);
/// What the body of an order may be.
const LIMITS: BodyLimits = BodyLimits { bytes: 64 * 1024, time: Duration::from_secs(10) };
/// The longest time that an order may ask to take, in milliseconds.
const MAX_DELAY_MS: u64 = 60_000;

/// Where the toy shop is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SandboxMode {
    /// Where the service listens on loopback alone and was given no configuration file.
    Auto,
    /// Everywhere.
    On,
    /// Nowhere.
    Off,
}

/// The paths of the shop, but for those that `taken` says are another's.
fn paths(taken: impl Fn(&str) -> bool) -> impl Iterator<Item = &'static str> {
    PATHS.into_iter().filter(move |path| !taken(path))
}

/// The routes of the shop, each guarded.
pub(super) fn routers(
    records: &Arc<IdempotencyService>,
    taken: impl Fn(&str) -> bool,
) -> impl Iterator<Item = Result<Router, InvalidSetting>> {
    let of = |path: &str, guard| {
        let orders = OrderBook::new(Arc::clone(records), path.to_owned());
        let layer = IdempotencyLayer::over(Arc::clone(records)).with_guard(guard)?;
        Ok((orders, layer.with_resolve_url(resolve_url)))
    };
    paths(taken).map(move |path| {
        let (orders, layer) = of(path, guard())?;
        let routes = router(orders, layer);
        if path == PAYMENTS {
            return Ok(routes);
        }
        let (orders, layer) = of(path, keyless_guard())?;
        let keyless = post(create).route_layer(layer).with_state(Arc::new(orders));
        let routes = routes.route(KEYLESS, keyless);
        Ok(routes.method_not_allowed_fallback(method_not_allowed))
    })
}

/// How long a request to the shop may take altogether.
pub(super) fn deadline() -> Duration {
    LIMITS.time + Duration::from_millis(guard().max_wait_ms + MAX_DELAY_MS) + SLACK
}

/// What the OpenAPI document says of the shop.
pub(super) fn document(taken: impl Fn(&str) -> bool) -> OpenApi {
    let mut all = Paths::new();
    for path in paths(taken) {
        all.merge(operations(path));
    }
    let schemas = if all.paths.is_empty() { Vec::new() } else { schemas() };
    let components = ComponentsBuilder::new().schemas_from_iter(schemas).build();
    OpenApiBuilder::new().paths(all).components(Some(components)).build()
}

/// What the bodies of the shop are, by the names under which the operations refer to them.
fn schemas() -> Vec<(String, RefOr<Schema>)> {
    let mut schemas = vec![
        (NewOrder::name().into_owned(), NewOrder::schema()),
        (Orders::name().into_owned(), Orders::schema()),
        (Payments::name().into_owned(), Payments::schema()),
    ];
    NewOrder::schemas(&mut schemas);
    Orders::schemas(&mut schemas);
    schemas
}

fn guard() -> Guard {
    Guard { lease_ms: LEASE_MS, body_limit_bytes: LIMITS.bytes, ..Guard::default() }
}

/// Two equal orders within 10 s are one, whoever sends them: people who try it are alone.
fn keyless_guard() -> Guard {
    let derive = DeriveKey { anonymous: true, ..DeriveKey::default() };
    Guard { missing_key: MissingKey::Derive, derive, ..guard() }
}

/// What to create. All but the amount and the currency may be left out.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default, expecting = "a JSON object")]
struct NewOrder {
    /// In the smallest unit: 1 to 99999999.
    #[serde(deserialize_with = "keylatch_wire::whole_number")]
    #[schema(value_type = u64, minimum = 1, maximum = 99999999, required)]
    amount: Option<u64>,
    /// Three capital letters.
    #[schema(value_type = String, pattern = "^[A-Z]{3}$", required)]
    currency: Option<String>,
    /// What is bought.
    items: Vec<Item>,
    /// How long to take, in milliseconds: at most 60000.
    #[serde(deserialize_with = "whole_or_none")]
    #[schema(maximum = 60000)]
    delay_ms: u64,
    /// Make the toy shop fail with this status, 400 to 599. It then creates nothing.
    #[serde(deserialize_with = "keylatch_wire::whole_number")]
    #[schema(minimum = 400, maximum = 599)]
    fail: Option<u16>,
}

fn whole_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    Ok(keylatch_wire::whole_number(deserializer)?.unwrap_or_default())
}

/// The last orders.
#[derive(Debug, Serialize, ToSchema)]
struct Orders {
    /// Newest first.
    orders: Vec<Order>,
}

/// The last payments.
#[derive(Debug, Serialize, ToSchema)]
struct Payments {
    /// Newest first.
    payments: Vec<Order>,
}

/// What is at the path of these orders and below it. The layer is around what it guards alone, so
/// that what is not there is not asked for a key.
fn router(orders: OrderBook, layer: IdempotencyLayer) -> Router {
    let path = orders.path().to_owned();
    let all = post(create).route_layer(layer);
    let all = if path == PAYMENTS { all.get(list_payments) } else { all.get(list) };
    Router::new()
        .route(&path, all)
        .route(&format!("{path}/{{id}}"), get(look))
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(Arc::new(orders))
}

/// The operations at `path` and below it.
fn operations(path: &str) -> Paths {
    let mut one = __path_create::operation();
    add_headers(&mut one, true);
    let is_of_payments = path == PAYMENTS;
    let list =
        if is_of_payments { __path_list_payments::operation() } else { __path_list::operation() };
    let (noun, single, several) = match path {
        PAYMENTS => ("Payment", "a payment", "payments"),
        _ => ("Order", "an order", "orders"),
    };
    let look = __path_look::operation();
    let of_shop = problems::guarded(&[Code::ValidationFailed]);
    let of_look = [HEALTH, &[Code::NotFound]].concat();
    let operations = [
        ("", HttpMethod::Post, one, single, format!("create{noun}"), of_shop),
        ("", HttpMethod::Get, list, several, format!("list{noun}s"), HEALTH.to_vec()),
        ("/{id}", HttpMethod::Get, look, single, format!("get{noun}"), of_look),
    ];
    let mut paths = Paths::new();
    for (below, method, mut operation, what, id, problems) in operations {
        operation.summary = operation.summary.map(|verb| format!("{verb} {what}"));
        problems::add(&mut operation, &problems);
        name_operation(&mut operation, id);
        paths.add_path_operation(format!("{path}{below}"), vec![method], operation);
    }
    paths
}

/// Create
///
/// Runs once under its Idempotency-Key, however often it is sent. Every repeat reads the first
/// answer. `delay_ms` and `fail` are there to play with.
#[utoipa::path(post, path = "",
    request_body(content = NewOrder, description = "As JSON, or as a form",
        example = json!({"amount": 1999, "currency": "EUR", "items": [{"name": "coffee", "quantity": 2}]})),
    responses(
        (status = 201, description = "It is created. A repeat reads the same, with `Idempotent-Replayed`", body = Order, headers(
            ("Location" = String, description = "Its own URL"),
            ("Idempotency-Key-Expires" = String, description = "Until when the key is remembered, at least (an HTTP date)"),
        )),
    ))]
async fn create(
    State(orders): State<Arc<OrderBook>>,
    Extension(fencing_token): Extension<FencingToken>,
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
    match orders.place(new.into_order(fencing_token)).await {
        Ok(order) if wants_page => {
            Redirect::to(&format!("/demo?order={}", order.id)).into_response()
        }
        Ok(order) => created(orders.path(), order),
        Err(error) => not_placed(error),
    }
}

fn created(path: &str, order: Order) -> Response {
    let location = HeaderValue::try_from(format!("{path}/{}", order.id));
    let mut response = (StatusCode::CREATED, Json(order)).into_response();
    response.headers_mut().extend(location.ok().map(|location| (header::LOCATION, location)));
    response
}

/// The store failed. Whether the key is free again depends on what it did.
fn not_placed(error: OrderError) -> Response {
    let (problem, keep) = match error {
        OrderError::NotPlaced(error) => (error.into(), RetentionPolicy::Release),
        OrderError::InDoubt(error) => match error.effect() {
            Effect::NotExecuted => (Problem::from(error), RetentionPolicy::Release),
            Effect::Unknown => (Problem::from(error), RetentionPolicy::Unknown),
        },
    };
    let mut response = problem.with_retry().into_response();
    response.extensions_mut().insert(keep);
    response
}

/// List
///
/// The last hundred.
#[utoipa::path(get, path = "",
    responses((status = 200, description = "Newest first", body = Orders)))]
async fn list(State(orders): State<Arc<OrderBook>>) -> Result<Json<Orders>, Problem> {
    Ok(Json(Orders { orders: orders.latest().await.map_err(not_read)? }))
}

/// List
///
/// The last hundred.
#[utoipa::path(get, path = "",
    responses((status = 200, description = "Newest first", body = Payments)))]
async fn list_payments(State(orders): State<Arc<OrderBook>>) -> Result<Json<Payments>, Problem> {
    Ok(Json(Payments { payments: orders.latest().await.map_err(not_read)? }))
}

/// Look at
#[utoipa::path(get, path = "",
    params(("id" = String, Path, description = "Its id", example = "1")),
    responses((status = 200, description = "It is there", body = Order)))]
async fn look(
    State(orders): State<Arc<OrderBook>>,
    Path(id): Path<String>,
) -> Result<Json<Order>, Problem> {
    let absent = || Problem::new(Code::NotFound, "There is no such order.");
    let number = id.parse().ok().filter(|number: &u32| number.to_string() == id && *number > 0);
    let order = orders.find(number.ok_or_else(absent)?).await.map_err(not_read)?;
    order.map(Json).ok_or_else(absent)
}

/// A read changes nothing, so its outcome is never in doubt.
fn not_read(error: StoreError) -> Problem {
    Problem::new(Code::StoreUnavailable, "The store cannot be used now.")
        .with_outcome(Effect::NotExecuted)
        .with_retry_after(Duration::from_secs(1))
        .caused_by(error)
}

impl NewOrder {
    /// The order, but for its id, as the run with this fencing token places it.
    fn into_order(self, fencing_token: FencingToken) -> Order {
        Order {
            id: String::new(),
            amount: self.amount.unwrap_or_default(),
            currency: self.currency.unwrap_or_default(),
            items: self.items,
            created_at: Timestamp::now(),
            fencing_token: fencing_token.get(),
        }
    }
}

async fn read_new(request: Request) -> Result<NewOrder, Problem> {
    let form = content_type(request.headers()).starts_with("application/x-www-form-urlencoded");
    let body = read_body(request.into_body(), LIMITS).await?;
    // curl calls JSON a form unless the command names a content type.
    let json = body.trim_ascii_start().starts_with(b"{");
    let new = if form && !json { of_form(&body)? } else { parse::<NewOrder>(&body)? };
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
    rule(new.delay_ms <= MAX_DELAY_MS, "delay_ms", "must be at most 60000")?;
    rule(new.fail.is_none_or(|fail| (400..600).contains(&fail)), "fail", "must be 400 to 599")?;
    Ok(new)
}

/// A form of a browser: one item, and fields that may be empty.
fn of_form(body: &[u8]) -> Result<NewOrder, Problem> {
    let mut new = NewOrder::default();
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

fn content_type(headers: &HeaderMap) -> &str {
    headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default()
}
